//! The credential plugin: CPU time and memory of one run of `pinniped login`, started as kubectl
//! starts it; and of `pinniped version`, the least work of the program; and the program's size.
//!
//! It measures runs that print a cached credential, and runs that refresh the tokens of a session
//! at the issuer and exchange the ID token at the Concierge. One scripted server is both, because
//! only the time of the plugin counts. The runs start one after the other, from a small
//! program (`repeat/main.rs`), whose children are only these runs.
//!
//! It measures a copy of the program, because users have a copy: the system caches a file that was
//! copied in larger pieces than the linker's output, so that a page fault maps more of it.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use jiff::{SignedDuration, Timestamp};
use pinniped_jose::Algorithm;
use pinniped_jose::test_util::{Signer, key_set};
use pinniped_test_support::certs::Authority;
use pinniped_test_support::issuer::{DISCOVERY_PATH, KEYS_PATH, Reply, ScriptedIssuer};
use serde_json::json;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::process;
use crate::run::requirements::Checks;
use crate::runs::{Usage, check_output};
use crate::table::Table;

/// The requirements, by the prefixes of the names of their results.
const REQUIREMENTS: [&str; 5] = [
    "CPU of a cached credential, ms",
    "memory of a cached credential, MiB",
    "CPU of a refresh, ms",
    "CPU of pinniped version, ms",
    "size of the program without debug information, MiB",
];
/// Limits of the CPU time of one run, in milliseconds, and of its memory, in MiB.
const CACHED_CPU_LIMIT: f64 = 2.5;
const CACHED_MEMORY_LIMIT: f64 = 8.0;
const REFRESH_CPU_LIMIT: f64 = 10.0;
const VERSION_CPU_LIMIT: f64 = 2.0;
/// Limit of the size of the program in a release, in MiB.
const SIZE_LIMIT: f64 = 15.0;

const EXCHANGE_PATH: &str = "/apis/login.concierge.pinniped.dev/v1alpha1/tokencredentialrequests";
const TOKEN_PATH: &str = "/token";
const CLIENT_ID: &str = "pinniped-cli";
const SCOPES: [&str; 2] = ["offline_access", "openid"];

/// Lifetime of credentials: none is renewed during the measurement.
const CREDENTIAL_LIFETIME: SignedDuration = SignedDuration::from_mins(50);
/// Lifetime of ID tokens: below the ten minutes that `pinniped login oidc` requires of a cached
/// one, so that each run refreshes it.
const ID_TOKEN_LIFETIME: SignedDuration = SignedDuration::from_mins(9);

/// A part of every output of the plugin.
const CREDENTIAL: &str = "clientCertificateData";

/// The program that starts the runs, beside this one.
const REPEAT: &str = "pinniped-bench-repeat";

/// Flags of the run.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// The command line's program.
    #[arg(long)]
    pinniped: PathBuf,
    /// Run it fewer times.
    #[arg(long)]
    quick: bool,
    /// Exit with 1 if a limit is exceeded.
    #[arg(long)]
    check: bool,
}

/// Measures and prints.
pub(crate) fn run(runtime: &Runtime, options: &Options) -> anyhow::Result<ExitCode> {
    ensure!(options.pinniped.is_file(), "{} is not there", options.pinniped.display());
    if let Some(load) = process::load_average().filter(|load| *load > 0.5) {
        eprintln!("warning: this machine is busy (load {load:.1}): figures will be noisy");
    }
    let repeat = std::env::current_exe().context("could not find this program")?.with_file_name(REPEAT);
    let home = tempfile::tempdir().context("could not create a folder")?;
    let installed = Installed::copy_of(&options.pinniped, &repeat)?;
    // It runs on the threads of the runtime, while this thread waits for the plugin.
    let server = runtime.block_on(Server::start())?;
    let count = if options.quick { 50 } else { 200 };
    let plugin = Plugin { program: &installed.program, repeat, home: home.path(), server: &server, count };

    let mut checks = Checks::new(&REQUIREMENTS);
    let mut table = Table::new(&["run of the plugin", "CPU ms", "memory MiB, largest"]);
    for login in Login::ALL {
        let usage = plugin.measured(login)?;
        let (cpu, memory) = (usage.cpu_seconds * 1e3 / f64::from(count), usage.memory_kib as f64 / 1024.0);
        table.row(vec![login.to_string(), format!("{cpu:.2}"), format!("{memory:.1}")]);
        if login == Login::Refreshed {
            checks.at_most(format!("{}, {login}", REQUIREMENTS[2]), Some(cpu), REFRESH_CPU_LIMIT);
        } else {
            checks.at_most(format!("{}, {login}", REQUIREMENTS[0]), Some(cpu), CACHED_CPU_LIMIT);
            checks.at_most(format!("{}, {login}", REQUIREMENTS[1]), Some(memory), CACHED_MEMORY_LIMIT);
        }
    }
    let usage = plugin.version()?;
    let (cpu, memory) = (usage.cpu_seconds * 1e3 / f64::from(count), usage.memory_kib as f64 / 1024.0);
    table.row(vec!["version".to_owned(), format!("{cpu:.2}"), format!("{memory:.1}")]);
    checks.at_most(REQUIREMENTS[3], Some(cpu), VERSION_CPU_LIMIT);
    checks.at_most(REQUIREMENTS[4], Some(installed.stripped_mib()?), SIZE_LIMIT);
    println!("\n{table}\n{}", checks.table());
    let missed = checks.missed();
    missed.iter().for_each(|miss| eprintln!("  {miss}"));
    Ok(if options.check && !missed.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// A measured login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Login {
    /// `login static` with a cached credential.
    Static,
    /// `login oidc` with a cached credential.
    Oidc,
    /// `login oidc` with a session whose tokens are refreshed, and without a cache of credentials.
    Refreshed,
}

impl Login {
    const ALL: [Self; 3] = [Self::Static, Self::Oidc, Self::Refreshed];

    /// Returns the number of requests of `runs` runs after the first to the issuer's token
    /// endpoint and to the Concierge.
    fn requests(self, runs: u32) -> [usize; 2] {
        match self {
            Self::Static | Self::Oidc => [0, 0],
            Self::Refreshed => [runs as usize; 2],
        }
    }
}

impl std::fmt::Display for Login {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Static => "login static, cached credential",
            Self::Oidc => "login oidc, cached credential",
            Self::Refreshed => "login oidc, refresh and exchange",
        })
    }
}

/// The issuer, which is also the Concierge.
struct Server(ScriptedIssuer);

impl Server {
    async fn start() -> anyhow::Result<Self> {
        let issuer = ScriptedIssuer::start(IpAddr::V4(Ipv4Addr::LOCALHOST)).await?;
        let (url, now) = (issuer.url(), Timestamp::now());
        let signer = Signer::generate(Algorithm::Rs256, "bench");
        issuer.publish(&key_set([&signer]));
        issuer.reply(
            DISCOVERY_PATH,
            Reply::json(&json!({
                "issuer": url, "authorization_endpoint": format!("{url}/authorize"),
                "token_endpoint": format!("{url}{TOKEN_PATH}"), "jwks_uri": format!("{url}{KEYS_PATH}"),
                "response_types_supported": ["code"], "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["RS256"], "scopes_supported": SCOPES,
            })),
        );
        let groups: Vec<_> = (0..10).map(|n| format!("group-{n}")).collect();
        let id_token = signer.sign(&json!({"iss": url, "aud": CLIENT_ID, "sub": "bench", "groups": groups,
            "iat": now.as_second(), "exp": (now + ID_TOKEN_LIFETIME).as_second()}));
        issuer.reply(
            TOKEN_PATH,
            Reply::json(&json!({"token_type": "Bearer", "expires_in": ID_TOKEN_LIFETIME.as_secs(),
                "access_token": "access", "refresh_token": "refresh", "id_token": id_token})),
        );
        let credential = Authority::new("bench")?.client("bench", Some("bench"))?;
        let end = Timestamp::from_second((now + CREDENTIAL_LIFETIME).as_second())?;
        let exchanged = json!({"kind": "TokenCredentialRequest",
            "apiVersion": "login.concierge.pinniped.dev/v1alpha1", "metadata": {},
            "spec": {"authenticator": {"apiGroup": null, "kind": "", "name": ""}},
            "status": {"credential": {"expirationTimestamp": end.to_string(),
                "clientCertificateData": credential.certificate_pem,
                "clientKeyData": credential.private_key_pem}}});
        let created = Reply::Full(StatusCode::CREATED, "application/json", exchanged.to_string());
        issuer.reply(EXCHANGE_PATH, created);
        Ok(Self(issuer))
    }

    /// Returns the number of requests to the token endpoint and to the Concierge.
    fn requests(&self) -> [usize; 2] {
        [TOKEN_PATH, EXCHANGE_PATH].map(|path| self.0.seen(path).len())
    }

    fn ca(&self) -> String {
        STANDARD.encode(&self.0.ca_pem)
    }

    /// Returns the arguments of the plugin in a kubeconfig of `pinniped get kubeconfig`.
    fn args(&self, login: Login) -> Vec<String> {
        let (url, ca) = (self.0.url(), self.ca());
        let command = if login == Login::Static { "static" } else { "oidc" };
        let mut args = vec![
            "login".to_owned(),
            command.to_owned(),
            "--enable-concierge".to_owned(),
            "--concierge-api-group-suffix=pinniped.dev".to_owned(),
            "--concierge-authenticator-name=bench".to_owned(),
            "--concierge-authenticator-type=jwt".to_owned(),
            format!("--concierge-endpoint={url}"),
            format!("--concierge-ca-bundle-data={ca}"),
        ];
        if login == Login::Static {
            args.push("--token=bench".to_owned());
        } else {
            args.extend([
                format!("--issuer={url}"),
                format!("--client-id={CLIENT_ID}"),
                format!("--scopes={}", SCOPES.join(",")),
                format!("--ca-bundle-data={ca}"),
            ]);
        }
        if login == Login::Refreshed {
            args.push("--credential-cache=".to_owned());
        }
        args
    }

    /// Returns a session cache with a refresh token, as an earlier login leaves it.
    fn sessions(&self) -> String {
        let now = Timestamp::now().to_string();
        // JSON is YAML.
        json!({"apiVersion": "config.supervisor.pinniped.dev/v1alpha1", "kind": "SessionCache", "sessions": [{
            "key": {"issuer": self.0.url(), "clientID": CLIENT_ID, "scopes": SCOPES,
                "redirect_uri": "http://localhost:0/callback"},
            "creationTimestamp": now, "lastUsedTimestamp": now,
            "tokens": {"refresh": {"token": "refresh"}}}]})
        .to_string()
    }
}

/// A copy of the program, which is removed when it is dropped.
struct Installed {
    program: PathBuf,
    folder: TempDir,
}

impl Installed {
    /// Copies the program to a new folder beside `neighbor`: a folder for temporary files may be in
    /// memory, where files are cached differently.
    fn copy_of(program: &Path, neighbor: &Path) -> anyhow::Result<Self> {
        let parent = neighbor.parent().context("the program is in no folder")?;
        let folder = tempfile::tempdir_in(parent).context("could not create a folder")?;
        let copy = folder.path().join("pinniped");
        std::fs::copy(program, &copy)
            .and_then(|_| File::open(&copy)?.sync_all())
            .with_context(|| format!("could not copy {}", program.display()))?;
        Ok(Self { program: copy, folder })
    }

    /// Returns the size of the program as releases contain it, in MiB.
    fn stripped_mib(&self) -> anyhow::Result<f64> {
        let stripped = self.folder.path().join("stripped");
        let status =
            Command::new("strip").arg("--strip-all").arg("-o").arg(&stripped).arg(&self.program).status();
        let status = status.context("could not start strip: run `apt-get install binutils`")?;
        ensure!(status.success(), "strip failed: {status}");
        Ok(std::fs::metadata(&stripped)?.len() as f64 / 1_048_576.0)
    }
}

struct Plugin<'a> {
    program: &'a Path,
    repeat: PathBuf,
    home: &'a Path,
    server: &'a Server,
    count: u32,
}

impl Plugin<'_> {
    /// Runs a login once, which fills its caches, and then measures further runs.
    fn measured(&self, login: Login) -> anyhow::Result<Usage> {
        let home = self.home.join(format!("{login:?}"));
        let folder = home.join(".config").join("pinniped");
        DirBuilder::new().recursive(true).mode(0o700).create(&folder)?;
        if login != Login::Static {
            let mut options = OpenOptions::new();
            let mut file =
                options.write(true).create_new(true).mode(0o600).open(folder.join("sessions.yaml"))?;
            file.write_all(self.server.sessions().as_bytes())?;
        }
        let args = self.server.args(login);
        let first = self.environment(Command::new(self.program).args(&args), &home).output();
        check_output(&first.context("could not start the plugin")?, CREDENTIAL)
            .with_context(|| login.to_string())?;

        let before = self.server.requests();
        let usage = self.repeated(CREDENTIAL, &args, &home).with_context(|| login.to_string())?;
        let requests = self.server.requests();
        let sent = [requests[0] - before[0], requests[1] - before[1]];
        let expected = login.requests(self.count);
        ensure!(sent == expected, "{login}: it sent {sent:?} requests instead of {expected:?}");
        Ok(usage)
    }

    /// Measures runs of `pinniped version`.
    fn version(&self) -> anyhow::Result<Usage> {
        let home = self.home.join("version");
        std::fs::create_dir(&home)?;
        self.repeated(env!("CARGO_PKG_VERSION"), &["version".to_owned()], &home).context("pinniped version")
    }

    /// Runs the program several times; each run must print a text.
    fn repeated(&self, expected: &str, args: &[String], home: &Path) -> anyhow::Result<Usage> {
        let mut command = Command::new(&self.repeat);
        command.arg(self.count.to_string()).arg(expected).arg(self.program).args(args);
        let output = self
            .environment(&mut command, home)
            .output()
            .with_context(|| format!("could not start {}", self.repeat.display()))?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).context("the runs have no result")
    }

    /// Sets the environment that kubectl passes to a plugin.
    fn environment<'c>(&self, command: &'c mut Command, home: &Path) -> &'c mut Command {
        let info = json!({"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1beta1",
            "spec": {"interactive": false, "cluster": {"server": self.server.0.url(),
                "certificate-authority-data": self.server.ca(), "config": null}}});
        command.env_clear().env("HOME", home).env("PATH", "/usr/bin:/bin");
        command.env("KUBERNETES_EXEC_INFO", info.to_string()).stdin(Stdio::null())
    }
}
