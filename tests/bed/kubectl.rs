//! One run of the real kubectl.

use std::{
    ffi::{OsStr, OsString},
    io::{Read, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail};

use super::{users::User, wait::wait_for_value};

/// Limit of one kubectl command, so that one that hangs does not block the test run.
const LIMIT: Duration = Duration::from_secs(120);

/// kubectl with its arguments; [`run`](Self::run), [`ok`](Self::ok) or [`fails`](Self::fails) starts it.
pub(crate) struct Kubectl {
    program: PathBuf,
    home: PathBuf,
    args: Vec<OsString>,
    user: User,
    stdin: Vec<u8>,
    env: Vec<(OsString, OsString)>,
}

/// The result of a command.
#[derive(Debug)]
pub(crate) struct Output {
    pub(crate) status: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Output {
    pub(crate) fn success(&self) -> bool {
        self.status == Some(0)
    }
}

impl Kubectl {
    pub(super) fn new<A: AsRef<OsStr>>(program: &Path, home: &Path, args: impl IntoIterator<Item = A>) -> Self {
        Self {
            program: program.to_owned(),
            home: home.to_owned(),
            args: args.into_iter().map(|arg| arg.as_ref().to_owned()).collect(),
            user: User::Admin,
            stdin: Vec::new(),
            env: Vec::new(),
        }
    }

    pub(crate) fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.args.push(arg.as_ref().to_owned());
        self
    }

    /// `--namespace`.
    pub(crate) fn ns(self, ns: &str) -> Self {
        self.arg(format!("--namespace={ns}"))
    }

    /// Runs as this user instead of [`User::Admin`].
    pub(crate) fn user(mut self, user: User) -> Self {
        self.user = user;
        self
    }

    /// The standard input, for `-f -`.
    pub(crate) fn stdin(mut self, text: impl Into<Vec<u8>>) -> Self {
        self.stdin = text.into();
        self
    }

    /// Sets an environment variable, such as KUBE_EDITOR.
    pub(crate) fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Runs the command, whether or not it succeeds.
    pub(crate) fn run(self) -> Result<Output> {
        let mut child = Command::new(&self.program)
            .arg(format!("--kubeconfig={}", self.home.join(self.user.kubeconfig()).display()))
            .args(&self.args)
            // The developer's environment (proxies, KUBECONFIG, KUBECTL_*, kuberc in HOME) must not affect the test.
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", &self.home)
            .env("TMPDIR", &self.home)
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {}", self.program.display()))?;
        let mut stdin = child.stdin.take().context("no standard input")?;
        let mut stdout = child.stdout.take().context("no standard output")?;
        let mut stderr = child.stderr.take().context("no standard error")?;
        let input = self.stdin;
        thread::scope(|scope| {
            // kubectl may exit before it has read all input. That is not an error of this thread.
            scope.spawn(move || stdin.write_all(&input));
            let stdout = scope.spawn(move || read_all(&mut stdout));
            let stderr = scope.spawn(move || read_all(&mut stderr));
            let what = format!("kubectl {:?}", self.args);
            let ended = wait_for_value(&what, LIMIT, || Ok(child.try_wait()?));
            if ended.is_err() {
                let _ = child.kill();
                let _ = child.wait();
            }
            let stdout = stdout.join().map_err(|_| anyhow!("reading standard output"))?;
            let stderr = stderr.join().map_err(|_| anyhow!("reading standard error"))?;
            let status = ended.with_context(|| format!("{stdout}\n{stderr}"))?;
            Ok(Output { status: status.code(), stdout, stderr })
        })
    }

    /// Runs it; it must succeed. Returns its standard output.
    pub(crate) fn ok(self) -> Result<String> {
        let command = format!("kubectl {:?} as {}", self.args, self.user.name());
        let output = self.run()?;
        if !output.success() {
            bail!("{command}: expected success, saw {:?}\n{}{}", output.status, output.stdout, output.stderr);
        }
        Ok(output.stdout)
    }

    /// Runs it; it must fail. Returns its standard error.
    pub(crate) fn fails(self) -> Result<String> {
        let command = format!("kubectl {:?} as {}", self.args, self.user.name());
        let output = self.run()?;
        if output.success() {
            bail!("{command}: expected a failure, saw success\n{}{}", output.stdout, output.stderr);
        }
        Ok(output.stderr)
    }
}

fn read_all(from: &mut impl Read) -> String {
    let mut bytes = Vec::new();
    let _ = from.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}
