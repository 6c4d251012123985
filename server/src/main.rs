//! The daemon `tidegate-server`.
//!
//! Exit codes: 0 after a clean stop, 1 when serving failed, 2 for a wrong command line, 64 for a bad configuration.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use tidegate_server::config::{Config, ConfigError, Flag, Sources};
use tidegate_server::{Listeners, Reloads, run};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::error;
use tracing_subscriber::EnvFilter;

/// It gives memory back to the system soon after a burst, and an Acquire costs less with it than with the C library's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What is logged if `RUST_LOG` does not say. Clients can make h2 warn with each frame they send.
const LOGGED: &str = "info,h2=off";

/// Decides who may start now.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve until SIGTERM or SIGINT: drains then, and ends at once at the second one. SIGHUP and a changed file reload the settings of bulkheads.
    Serve(Settings),
    /// Print the configuration that holds, and where each value comes from, or what is wrong with it.
    CheckConfig(Settings),
    /// Print the version.
    Version,
}

/// Settings come from defaults, under the file, under variables such as `TIDEGATE__SERVER__LISTEN`, under flags.
#[derive(Args)]
struct Settings {
    /// The configuration, a TOML file.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Where applications connect: `server.listen`.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// Where operators connect: `server.admin_listen`.
    #[arg(long, value_name = "ADDRESS")]
    admin_listen: Option<String>,
    /// Where probes connect: `server.ops_listen`.
    #[arg(long, value_name = "ADDRESS")]
    ops_listen: Option<String>,
    /// Any setting of `[server]` or `[defaults]`, such as `defaults.max_wait=5s`; may be repeated.
    #[arg(long, value_name = "KEY=VALUE", value_parser = assignment)]
    set: Vec<(String, String)>,
}

/// `KEY=VALUE`.
fn assignment(text: &str) -> Result<(String, String), &'static str> {
    let (key, value) = text.split_once('=').ok_or("must be KEY=VALUE")?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}

impl Settings {
    fn sources(self) -> Sources {
        let named = [("listen", self.listen), ("admin_listen", self.admin_listen), ("ops_listen", self.ops_listen)];
        let named = named.into_iter().filter_map(|(key, value)| {
            let name = format!("--{}", key.replace('_', "-"));
            Some(Flag { name, key: format!("server.{key}"), value: value? })
        });
        let set = self.set.into_iter().map(|(key, value)| Flag { name: format!("--set {key}"), key, value });
        Sources::new(self.config, std::env::vars_os(), named.chain(set).collect())
    }
}

fn main() -> ExitCode {
    match Arguments::parse().command {
        Command::Version => {
            println!("tidegate-server {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        Command::CheckConfig(settings) => match Config::read(&settings.sources()) {
            Ok(config) => {
                print!("{}", config.effective());
                ExitCode::SUCCESS
            }
            Err(error) => refuse(&error, |line| eprintln!("bad configuration: {line}")),
        },
        Command::Serve(settings) => {
            let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(LOGGED));
            tracing_subscriber::fmt()
                .with_env_filter(filter)
                .with_ansi(std::io::stderr().is_terminal())
                .with_writer(std::io::stderr)
                .init();
            let sources = settings.sources();
            match Config::read(&sources) {
                Ok(config) => serve(config, sources),
                Err(error) => refuse(&error, |line| error!("bad configuration: {line}")),
            }
        }
    }
}

/// Tells all that is wrong.
fn refuse(error: &ConfigError, tell: impl Fn(String)) -> ExitCode {
    error.lines().for_each(tell);
    ExitCode::from(64)
}

fn serve(config: Config, sources: Sources) -> ExitCode {
    let runtime = match Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            error!("cannot start: {error}");
            return ExitCode::FAILURE;
        }
    };
    let served = runtime.block_on(async {
        // The handlers are there before anything else, so no signal is missed.
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let reloads = Reloads::watch(sources)?;
        let listeners = Listeners::bind(&config.server).await?;
        let (stop, at_once) = (CancellationToken::new(), CancellationToken::new());
        let signals = [stop.clone(), at_once.clone()];
        tokio::spawn(async move {
            for asked in signals {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                asked.cancel();
            }
        });
        run(config, listeners, reloads, stop.cancelled(), at_once.cancelled()).await
    });
    // A reload that reads a file from which nothing comes would hold up the end for ever.
    runtime.shutdown_background();
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
