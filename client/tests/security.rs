//! TLS and credentials by the builder's hooks, and servers that refuse them.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::net::SocketAddr;
use std::sync::Arc;

use rcgen::CertifiedKey;
use tidegate_client::testing::FakeServer;
use tidegate_client::{Client, Draft, Error, Fallback};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tonic::service::Routes;
use tonic::transport::{Certificate, ClientTlsConfig, Server};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

async fn fake() -> FakeServer {
    FakeServer::start([("db", Draft { limit: Some(1), ..Draft::default() })]).await.unwrap()
}

/// Ends TLS in front of a server, for the name `localhost`; the port, and what to trust.
async fn behind_tls(server: SocketAddr) -> (u16, String) {
    let CertifiedKey { cert, signing_key } = rcgen::generate_simple_self_signed(["localhost".into()]).unwrap();
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let mut config = config.with_single_cert(vec![cert.der().clone()], key).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                // Who does not trust it, or speaks no TLS, fails here.
                let Ok(mut open) = acceptor.accept(socket).await else { return };
                let mut inner = TcpStream::connect(server).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut open, &mut inner).await;
            });
        }
    });
    (port, cert.pem())
}

#[tokio::test]
async fn tls_is_set_up_by_a_hook_and_carries_everything() {
    let fake = fake().await;
    let (port, trusted) = behind_tls(fake.endpoint().trim_start_matches("http://").parse().unwrap()).await;
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(trusted));
    let builder = Client::builder(format!("https://localhost:{port}")).metadata(|metadata| {
        metadata.insert("authorization", "Bearer xyz".parse().unwrap());
    });
    let client = builder.transport(move |endpoint| endpoint.tls_config(tls.clone())).connect().await.unwrap();
    let permit = client.bulkhead("db").acquire().await.unwrap();
    assert_eq!(fake.last_metadata().get("authorization").unwrap(), "Bearer xyz");
    permit.release().await.unwrap();
    assert_eq!(fake.bulkhead("db").status().running, 0);
}

#[tokio::test]
async fn a_certificate_that_is_not_trusted_and_a_missing_tls_say_what_to_check() {
    let fake = fake().await;
    let (port, _) = behind_tls(fake.endpoint().trim_start_matches("http://").parse().unwrap()).await;
    let other = rcgen::generate_simple_self_signed(["localhost".into()]).unwrap().cert.pem();
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(other));
    let untrusting = Client::builder(format!("https://localhost:{port}"));
    let untrusting = untrusting.transport(move |endpoint| endpoint.tls_config(tls.clone())).connect().await;
    let error = untrusting.unwrap_err().to_string();
    assert!(error.contains("certificate") && error.contains("TLS on both sides"), "{error}");

    let plain = Client::connect(format!("http://localhost:{port}")).await.unwrap_err();
    assert!(plain.to_string().contains("TLS on both sides"), "{plain}");
    // TLS was asked for in the address and set up nowhere.
    let bare = Client::connect(format!("https://localhost:{port}")).await.unwrap_err();
    assert!(bare.to_string().contains("TLS"), "{bare}");
}

/// A server that refuses every call for that reason.
async fn refusing(code: Code, reason: &'static str) -> String {
    let answer = move || {
        let details = ErrorDetails::with_error_info(reason, "tidegate", std::collections::HashMap::new());
        std::future::ready(
            Status::with_error_details(code, "identity shop-7", details).into_http::<tonic::body::Body>(),
        )
    };
    let routes = Routes::from(axum::Router::new().fallback(answer));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    tokio::spawn(Server::builder().add_routes(routes).serve_with_incoming(incoming));
    format!("http://{address}")
}

#[tokio::test]
async fn a_permission_that_is_refused_says_what_to_do_and_starts_no_fallback() {
    for (code, reason, advice) in [
        (Code::PermissionDenied, "NOT_ALLOWED", "ask an operator for the permission"),
        (Code::Unauthenticated, "NO_CREDENTIALS", "send credentials with ClientBuilder::metadata"),
    ] {
        let builder = Client::builder(refusing(code, reason).await);
        let client = builder.fallback(Fallback::Open, std::time::Duration::from_mins(1)).connect().await.unwrap();
        let error = client.bulkhead("db").acquire().await.unwrap_err();
        assert!(matches!(&error, Error::Refused(refusal) if refusal.code == code), "{error:?}");
        assert_eq!(error.reason(), reason);
        assert!(error.to_string().contains(advice), "{error}");
        assert!(!client.is_falling_back());
    }
}
