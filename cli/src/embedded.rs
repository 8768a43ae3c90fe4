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
use hyper::{HeaderMap, Request};
use std::path::Path;
use std::sync::Arc;
use tower::ServiceExt;

/// An open data folder.
pub struct Embedded {
    router: Router,
    local: Local,
}

impl Embedded {
    /// Opens `dir`, making it when it is not there. Fails with `Conflict` naming the process that
    /// holds it.
    pub async fn open(dir: &Path, config: &NodeConfig) -> Result<Self, Failure> {
        let (local, engine) = local::open(dir, config).await?;
        let surface = Surface::new(engine, Arc::new(AlwaysReady), HttpConfig::default());
        Ok(Self { router: server::router(surface), local })
    }

    /// One request, answered here.
    pub async fn send(
        &self,
        request: Request<Full<Bytes>>,
    ) -> Result<(u16, HeaderMap, Bytes), Failure> {
        let broken = |error: &dyn std::fmt::Display| Failure::Failed(format!("answer: {error}"));
        let request = request.map(Body::new);
        let response =
            self.router.clone().oneshot(request).await.map_err(|error| broken(&error))?;
        let (parts, body) = response.into_parts();
        let body = body.collect().await.map_err(|error| broken(&error))?.to_bytes();
        Ok((parts.status.as_u16(), parts.headers, body))
    }

    /// Closes the folder in order, so that the next start is quick.
    pub async fn close(self) -> Result<(), Failure> {
        Ok(self.local.0.shutdown().await?)
    }
}
