//! Start and stop of the process, and what probes and tools see of it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use tidegate_tests::attack::{Attack, Flood};
use tidegate_tests::{Instant, PATIENCE, Server, ask, drain_and_refill, exit_of, in_time, v1};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::{v1 as reflection, v1alpha};

const DB: &str = "[[bulkhead]]\nname='db'\nlimit=1\nmax_wait='1m'\n";
const ADMISSION: &str = "tidegate.v1.AdmissionService";
const ADMIN: &str = "tidegate.v1.AdminService";

async fn channel(address: SocketAddr) -> Channel {
    Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
}

/// The status of a probe, and its text.
async fn probe(server: &Server, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(server.ops_address()).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: probe\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("HTTP has a head");
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.trim().into())
}

#[tokio::test]
async fn probes_are_answered_over_plain_http() {
    let server = Server::start(DB);
    for path in ["/livez", "/readyz", "/startupz"] {
        assert_eq!(probe(&server, path).await, (200, "ok".into()), "{path}");
    }
    assert_eq!(probe(&server, "/nothing").await.0, 404);
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn health_is_told_on_both_listeners() {
    let server = Server::start(DB);
    for (address, service, other) in
        [(server.admission_address(), ADMISSION, ADMIN), (server.admin_address(), ADMIN, ADMISSION)]
    {
        let mut health = HealthClient::new(channel(address).await);
        for name in ["", service] {
            let HealthCheckResponse { status } =
                health.check(HealthCheckRequest { service: name.into() }).await.unwrap().into_inner();
            assert_eq!(status, i32::from(ServingStatus::Serving), "{name:?} on {address}");
        }
        let status = health.check(HealthCheckRequest { service: other.into() }).await.unwrap_err();
        assert_eq!(status.code(), Code::NotFound, "{other} is not served there");
    }
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn reflection_describes_the_services_on_both_listeners() {
    let server = Server::start(DB);
    for (address, service) in [(server.admission_address(), ADMISSION), (server.admin_address(), ADMIN)] {
        let mut client = ServerReflectionClient::new(channel(address).await);
        let ask = |message| reflection::ServerReflectionRequest { host: String::new(), message_request: Some(message) };
        let requests = [
            ask(MessageRequest::ListServices(String::new())),
            ask(MessageRequest::FileContainingSymbol(service.into())),
            ask(MessageRequest::FileContainingSymbol("tidegate.v1.Refusal".into())),
            ask(MessageRequest::FileContainingSymbol("tidegate.v1.Nothing".into())),
        ];
        let answers = client.server_reflection_info(tokio_stream::iter(requests)).await.unwrap().into_inner();
        let answers: Vec<_> = answers.map_while(|answer| answer.ok()?.message_response).collect().await;
        let Some(MessageResponse::ListServicesResponse(list)) = answers.first() else { panic!("{answers:?}") };
        let names: Vec<_> = list.service.iter().map(|service| &service.name[..]).collect();
        assert!(names.contains(&service) && names.contains(&"grpc.health.v1.Health"), "{names:?}");
        for answer in &answers[1..3] {
            assert!(matches!(answer, MessageResponse::FileDescriptorResponse(_)), "{answer:?}");
        }

        // Older tools know only the first version of it.
        let mut client = v1alpha::server_reflection_client::ServerReflectionClient::new(channel(address).await);
        let request = v1alpha::ServerReflectionRequest {
            host: String::new(),
            message_request: Some(v1alpha::server_reflection_request::MessageRequest::ListServices(String::new())),
        };
        let mut answers = client.server_reflection_info(tokio_stream::iter([request])).await.unwrap().into_inner();
        assert!(answers.next().await.unwrap().unwrap().message_response.is_some());
    }
    drain_and_refill(&server, "db").await;
}

#[tokio::test]
async fn an_idle_server_ends_at_once_and_cleanly_when_asked_to() {
    in_time(Duration::from_secs(3), async || {
        let server = Server::start(DB);
        drain_and_refill(&server, "db").await;
        let exit = server.terminate().await;
        assert_eq!(exit.code, Some(0), "{}", exit.log);
        exit.took
    })
    .await;
}

#[tokio::test]
async fn a_server_ends_within_3_s_although_clients_keep_streams_and_calls_open() {
    in_time(Duration::from_secs(3), async || {
        let server = Server::start(DB);
        drain_and_refill(&server, "db").await;
        let client = server.client().await;
        let lease = client.take("db").await;
        let waiter = client.start(ask("db"));
        server.until("db", |now| now.queued == 1).await;
        // One stream in use, one that was never used; both stay open on the client's side.
        let (sender, receiver) = mpsc::channel(1);
        let mut answers = client.stub().renew_leases(ReceiverStream::new(receiver)).await.unwrap().into_inner();
        sender.send(v1::RenewLeasesRequest { seq: 1, lease_ids: vec![lease.lease_id] }).await.unwrap();
        answers.next().await.unwrap().unwrap();
        let idle = server.client().await;
        let _idle_stream = idle.stub().renew_leases(tokio_stream::pending()).await.unwrap();

        let start = Instant::now();
        server.ask_to_end();
        // Probes are told while calls are still open.
        while probe(&server, "/readyz").await.0 != 503 {
            assert!(start.elapsed() < PATIENCE);
        }
        assert_eq!(probe(&server, "/livez").await.0, 200);
        let exit = server.terminate().await;
        let took = start.elapsed();
        assert_eq!(exit.code, Some(0), "{}", exit.log);
        assert!(waiter.await.unwrap().is_err());
        // It was told that the server drains, and then the server ended the stream.
        let told = answers.next().await.unwrap().unwrap();
        assert_eq!((told.seq, told.draining), (0, true));
        assert!(!matches!(answers.next().await, Some(Ok(_))), "the server ended the stream");
        drop(sender);
        took
    })
    .await;
}

#[tokio::test]
async fn a_server_ends_within_3_s_although_a_client_takes_none_of_its_answers() {
    in_time(Duration::from_secs(3), async || {
        let server = Server::start(DB);
        drain_and_refill(&server, "db").await;
        // It answers PINGs, so keepalive leaves it alone.
        let flood = Flood::start(Attack::ZeroWindow, server.admission_address(), 1, 100);
        flood.active(true);
        let start = Instant::now();
        while flood.sent() < 20 {
            assert!(start.elapsed() < PATIENCE, "nothing is sent");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        flood.active(false);
        // By then the server has read some of it.
        drain_and_refill(&server, "db").await;
        let exit = server.terminate().await;
        assert_eq!(exit.code, Some(0), "{}", exit.log);
        assert!(exit.log.contains("calls were still open"), "{}", exit.log);
        exit.took
    })
    .await;
}

#[tokio::test]
async fn a_server_ends_although_it_reads_a_file_from_which_nothing_comes() {
    let folder = tempfile::TempDir::new().unwrap();
    let file = folder.path().join("tidegate.toml");
    std::fs::write(&file, DB).unwrap();
    let server = Server::start_on(&file, &[]);
    let pipe = folder.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    std::fs::rename(&pipe, &file).unwrap();
    // It can be opened for writing as soon as the server reads it.
    let start = Instant::now();
    let mut writer = std::fs::OpenOptions::new();
    writer.write(true).custom_flags(nix::libc::O_NONBLOCK);
    let _silent = loop {
        match writer.open(&file) {
            Ok(silent) => break silent,
            Err(_) => assert!(start.elapsed() < PATIENCE, "the server does not read it"),
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    };
    let exit = server.terminate().await;
    assert_eq!(exit.code, Some(0), "{}", exit.log);
}

#[tokio::test]
async fn clients_cannot_fill_the_log() {
    let server = Server::start(DB);
    let mut stream = TcpStream::connect(server.admission_address()).await.unwrap();
    let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    // Answers to PINGs that nobody sent: few enough that the connection is kept.
    for _ in 0..500 {
        sent.extend(b"\0\0\x08\x06\x01\0\0\0\0logfill!");
    }
    // And one PING, whose answer comes when all that was read.
    sent.extend(b"\0\0\x08\x06\0\0\0\0\0the last");
    stream.write_all(&sent).await.unwrap();
    let mut answer = Vec::new();
    while !answer.windows(8).any(|bytes| bytes == b"the last") {
        assert_ne!(stream.read_buf(&mut answer).await.unwrap(), 0, "it is kept");
    }
    drain_and_refill(&server, "db").await;
    let lines = server.log().lines().filter(|line| line.contains("h2::")).count();
    assert_eq!(lines, 0, "{}", server.log());
}

#[tokio::test]
async fn a_bad_configuration_ends_the_start_with_64_and_names_what_is_wrong() {
    for (config, told) in [
        ("[[bulkhead]]\nname='db'\nlimit=0\n", "limit"),
        ("[[bulkhead]]\nname='db'\nlimit=1\nmax_wait='soon'\n", "max_wait"),
        ("[[bulkhead]]\nname='db'\nlimit=1\nlease_ttl='1s'\n", "lease_ttl"),
        ("[[bulkhead]]\nname='db'\nlimit=1\nmax_waits='1s'\n", "max_waits"),
        ("[server]\nkeepalive_interval='1ms'\n[[bulkhead]]\nname='db'\nlimit=1\n", "keepalive_interval"),
        ("[server]\nlisten='nowhere'\n[[bulkhead]]\nname='db'\nlimit=1\n", "listen"),
        ("[[bulkhead]]\nlimit=1\n", "name"),
        ("[server]\n", "bulkhead"),
        ("not = toml = at all\n", "TOML"),
    ] {
        let exit = exit_of(config).await;
        assert_eq!(exit.code, Some(64), "{config}{}", exit.log);
        assert!(exit.log.contains("bad configuration") && exit.log.contains(told), "{told}: {}", exit.log);
        assert!(!exit.log.contains("serving"), "{}", exit.log);
    }
}

#[tokio::test]
async fn a_port_that_is_taken_ends_the_start_with_1_and_names_the_setting() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    for setting in ["listen", "admin_listen", "ops_listen"] {
        let exit = exit_of(&format!("[server]\n{setting} = '{address}'\n{DB}")).await;
        assert_eq!(exit.code, Some(1), "{}", exit.log);
        let told = [format!("{address}"), format!(" {setting})")];
        assert!(told.iter().all(|told| exit.log.contains(told)), "{}", exit.log);
    }
}

#[tokio::test]
async fn lost_leases_and_changes_are_logged_and_nothing_that_clients_send() {
    let server = Server::start("[[bulkhead]]\nname='db'\nlimit=1\nceiling=4\nlease_ttl='2s'\n");
    let client = server.client().await;
    client.granted(v1::AcquireRequest { holder: "shop-7".into(), ..ask("db") }).await;
    server.until("db", |now| now.expired == 1).await;
    server.until_logged("leases expired: their holders did not renew them bulkhead=db lost=1", 1).await;
    server.admin().await.set_limit("db", 3).await;
    server.until_logged(r#"changed action="SetLimit""#, 1).await;
    assert!(!server.logged("shop-7"), "a holder is the client's");
    drain_and_refill(&server, "db").await;
}
