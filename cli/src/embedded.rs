//! The engine of a data folder in this process, behind the router that `serve` serves, without a
//! socket.

use crate::failure::Failure;
use crate::local::{self, Local};
use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use hopbine_coordinator::server::{self, AlwaysReady, HttpConfig, Surface};
use hopbine_node::NodeConfig;
use http_body_util::{BodyExt, Full};
use hyper::header::{HOST, HeaderValue};
use hyper::{HeaderMap, Request};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::sync::OnceCell;
use tower::ServiceExt;

/// A data folder, open or still to be made.
pub struct Embedded {
    dir: PathBuf,
    config: NodeConfig,
    open: OnceCell<Open>,
}

/// An open data folder.
struct Open {
    router: Router,
    local: Local,
}

impl Open {
    async fn at(dir: &Path, config: &NodeConfig) -> Result<Self, Failure> {
        let (local, engine) = local::open(dir, config).await?;
        let surface = Surface::new(engine, Arc::new(AlwaysReady), HttpConfig::default());
        Ok(Self { router: server::router(surface), local })
    }
}

impl Embedded {
    /// Opens `dir`, making it when it is not there. Fails with `Conflict` naming the process that
    /// holds it.
    pub async fn open(dir: &Path, config: &NodeConfig) -> Result<Self, Failure> {
        let embedded = Self::put_off(dir, config);
        embedded.found().await?;
        Ok(embedded)
    }

    /// Leaves `dir`, which holds nothing yet, alone until `found` is called.
    pub fn put_off(dir: &Path, config: &NodeConfig) -> Self {
        Self { dir: dir.to_owned(), config: config.clone(), open: OnceCell::new() }
    }

    /// Whether the folder is open.
    pub fn is_open(&self) -> bool {
        self.open.initialized()
    }

    /// Opens the folder, making it when it is not there, unless it is open.
    pub async fn found(&self) -> Result<(), Failure> {
        self.open.get_or_try_init(|| Open::at(&self.dir, &self.config)).await?;
        Ok(())
    }

    /// One request, answered here.
    pub async fn send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<(u16, HeaderMap, Bytes), Failure> {
        let broken = |error: &dyn std::fmt::Display| Failure::Failed(format!("answer: {error}"));
        let open = self.open.get().expect("a folder is made before anything is asked of it");
        let mut request = request.map(Body::new);
        // As every request of HTTP/1.1 has one.
        request.headers_mut().insert(HOST, HeaderValue::from_static("localhost"));
        let response =
            open.router.clone().oneshot(request).await.map_err(|error| broken(&error))?;
        let (parts, body) = response.into_parts();
        let body = body.collect().await.map_err(|error| broken(&error))?.to_bytes();
        Ok((parts.status.as_u16(), parts.headers, body))
    }

    /// Closes the folder in order, so that the next start is quick.
    pub async fn close(self) -> Result<(), Failure> {
        match self.open.into_inner() {
            Some(open) => Ok(open.local.0.shutdown().await?),
            None => Ok(()),
        }
    }
}
