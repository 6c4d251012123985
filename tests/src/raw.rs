//! gRPC calls made by hand on HTTP/2, for what no stub would send: any bytes as a body, any text as a header.

use std::net::SocketAddr;

use h2::client::SendRequest;
use http::HeaderMap;
use prost::bytes::{BufMut, Bytes, BytesMut};
use tokio::net::TcpStream;

use crate::PATIENCE;

/// A connection without a stub on it.
#[derive(Clone, Debug)]
pub struct Raw {
    sender: SendRequest<Bytes>,
    address: SocketAddr,
}

/// What the server answered.
#[derive(Clone, Debug)]
pub struct Reply {
    /// `grpc-status`; `None` if the stream was reset, or ended without one.
    pub code: Option<i32>,
    /// `grpc-message`, percent-encoded as it came.
    pub message: String,
}

impl Raw {
    /// Connects.
    pub async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.expect("the server accepts");
        stream.set_nodelay(true).expect("a socket has options");
        let (sender, connection) = h2::client::handshake(stream).await.expect("the server speaks HTTP/2");
        tokio::spawn(connection);
        Self { sender, address }
    }

    /// One message framed as gRPC does, and what came back. `method` is `package.Service/Method`.
    pub async fn call(&self, method: &str, headers: &[(&str, &[u8])], message: &[u8]) -> Reply {
        let mut body = BytesMut::with_capacity(5 + message.len());
        body.put_u8(0);
        body.put_u32(u32::try_from(message.len()).expect("messages are small"));
        body.put_slice(message);
        self.send(method, headers, body.freeze()).await
    }

    /// The same with a body that need not be framed.
    pub async fn send(&self, method: &str, headers: &[(&str, &[u8])], body: Bytes) -> Reply {
        let answer = tokio::time::timeout(PATIENCE, self.exchange(method, headers, body)).await;
        let (code, message) = match answer.expect("the server answers") {
            Ok(trailers) => {
                let text = |name| trailers.get(name).and_then(|value| value.to_str().ok());
                (
                    text("grpc-status").and_then(|code| code.parse().ok()),
                    text("grpc-message").unwrap_or_default().into(),
                )
            }
            Err(error) => (None, error.to_string()),
        };
        Reply { code, message }
    }

    /// The trailers; those of an answer without a body are its headers.
    async fn exchange(&self, method: &str, headers: &[(&str, &[u8])], body: Bytes) -> Result<HeaderMap, h2::Error> {
        let mut request = http::Request::post(format!("http://{}/{method}", self.address))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        for &(name, value) in headers {
            request = request.header(name, value);
        }
        let request = request.body(()).expect("headers are well-formed");
        let (response, mut stream) = self.sender.clone().ready().await?.send_request(request, false)?;
        stream.send_data(body, true)?;
        let (parts, mut body) = response.await?.into_parts();
        while let Some(data) = body.data().await {
            body.flow_control().release_capacity(data?.len())?;
        }
        Ok(body.trailers().await?.unwrap_or(parts.headers))
    }
}
