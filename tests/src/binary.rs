//! The server's binary and the client's examples, built by the test that needs them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// The one that `TIDEGATE_SERVER` names. Without it the built `tidegate-server` of this work tree, as fresh as its sources:
/// built once for each test process, in the profile and the target folder of the test itself.
pub(crate) fn path() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let build = || build(&["--package", "tidegate-server"], ["--bin", "tidegate-server"]);
    BUILT.get_or_init(|| std::env::var_os("TIDEGATE_SERVER").map_or_else(build, PathBuf::from))
}

/// One of the Rust client's examples.
pub fn example(name: &str) -> PathBuf {
    // With the features that all tests are built with, so that it is there already.
    build(&["--workspace"], ["--example", name])
}

fn build(packages: &[&str], target: [&str; 2]) -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| env!("CARGO").into()));
    cargo.args(["build", "--quiet", "--message-format", "json-render-diagnostics"]).args(packages).args(target);
    cargo.arg("--manifest-path").arg(manifest).arg("--target-dir").arg(target_dir());
    // What cargo tells a test of its package would make it build again what depends on that, such as ring.
    for (variable, _) in std::env::vars_os() {
        if variable.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")) {
            cargo.env_remove(variable);
        }
    }
    if !cfg!(debug_assertions) {
        cargo.arg("--release");
    }
    let output = cargo.stderr(Stdio::inherit()).output().expect("cargo starts");
    let messages = String::from_utf8_lossy(&output.stdout);
    let [kind, name] = target;
    assert!(output.status.success(), "cargo could not build {name}");
    let [kind, name] = [format!(r#""kind":["{}"]"#, &kind[2..]), format!(r#""name":"{name}""#)];
    let executable = |line: &str| {
        let is_it = line.contains(&kind) && line.contains(&name);
        let (_, path) = line.split_once(r#""executable":""#).filter(|_| is_it)?;
        path.split_once('"').map(|(path, _)| PathBuf::from(path))
    };
    messages.lines().find_map(executable).expect("cargo tells where it put what it built")
}

/// The target folder that this very test was built into: `<target>/<profile>/deps/<test>`.
fn target_dir() -> PathBuf {
    let test = std::env::current_exe().expect("a running test knows its path");
    test.ancestors().nth(3).expect("cargo builds tests three folders deep").to_path_buf()
}
