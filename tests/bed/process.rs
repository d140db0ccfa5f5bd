//! Child processes that cannot outlive the test run.
//!
//! Each child is started by a small `sh` whose standard input is a pipe from this process. The pipe is the lifeline:
//! nothing is ever written to it, and when this process ends, in whatever way, the kernel closes it, `read` sees the
//! end, and the child is killed. (`PR_SET_PDEATHSIG` would need unsafe code and is tied to a thread, not a process.)

use std::{
    cell::RefCell,
    ffi::{OsStr, OsString},
    fs::{File, OpenOptions},
    io::{BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};

use super::wait::wait_for;

thread_local! {
    /// Log files of the processes that this thread has started since its test began. A test runs on one thread.
    static STARTED: RefCell<Vec<PathBuf>> = const { RefCell::new(Vec::new()) };
}

/// Called when a new test begins on this thread.
pub(crate) fn forget_started() {
    STARTED.with_borrow_mut(Vec::clear);
}

/// The last lines of each log file of this thread's test.
pub(crate) fn started_log_tails(lines: usize) -> String {
    STARTED.with_borrow(|logs| logs.iter().map(|log| tail(log, lines)).collect())
}

/// `sh LOG PROGRAM ARGUMENTS…`: prints the program's process id, and exits as the program does.
const SUPERVISOR: &str = r#"
log=$1; shift
exec 3<&0
"$@" </dev/null >>"$log" 2>&1 3<&- &
child=$!
{ while read -r _; do :; done; kill -KILL "$child" 2>/dev/null; } <&3 &
watcher=$!
exec 3<&-
echo "$child"
wait "$child"; status=$?
kill -KILL "$watcher" 2>/dev/null
exit "$status"
"#;

/// `sh FOLDER`: at the end of the lifeline, waits for the processes that have files in the folder and removes it.
const JANITOR: &str = r#"
while read -r _; do :; done
for pid in $(cat "$1/pids"); do
  tries=0
  while kill -0 "$pid" && [ "$tries" -lt 100 ]; do sleep 0.1; tries=$((tries + 1)); done
done
rm -rf "$1"
"#;

/// A directory for the data and logs of a run, which is deleted with the run. `TRUSTSPAN_BED_KEEP=1` keeps it.
pub(crate) struct Scratch {
    path: PathBuf,
    janitor: Option<Child>,
}

impl Scratch {
    pub(crate) fn new() -> Result<Self> {
        let path = tempfile::Builder::new().prefix("trustspan-bed-").tempdir()?.keep();
        File::create(path.join("pids"))?;
        let janitor = match std::env::var_os("TRUSTSPAN_BED_KEEP") {
            Some(_) => None,
            None => Some(
                Command::new("sh")
                    .args([OsStr::new("-c"), JANITOR.as_ref(), "sh".as_ref(), path.as_ref()])
                    .stdin(Stdio::piped())
                    .stdout(Stdio::null())
                    .stderr(Stdio::null())
                    .process_group(0)
                    .spawn()
                    .context("starting sh")?,
            ),
        };
        Ok(Self { path, janitor })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Starts `program`, with its output in `<name>.log` of this directory. It gets only PATH and `env`: a proxy or a
    /// kubeconfig in the developer's environment must not affect the test.
    pub(crate) fn spawn<A: AsRef<OsStr>>(
        &self,
        name: &str,
        program: &Path,
        args: impl IntoIterator<Item = A>,
        env: &[(&str, &str)],
    ) -> Result<Process> {
        let args = args.into_iter().map(|arg| arg.as_ref().to_owned()).collect();
        let env = env.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        self.run(Program { name: name.to_owned(), path: program.to_owned(), args, env })
    }

    fn run(&self, program: Program) -> Result<Process> {
        let name = &program.name;
        let log = self.join(&format!("{name}.log"));
        let mut supervisor = Command::new("sh")
            .args([OsStr::new("-c"), SUPERVISOR.as_ref(), "sh".as_ref(), log.as_ref(), program.path.as_ref()])
            .args(&program.args)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", &self.path)
            .envs(program.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(OpenOptions::new().create(true).append(true).open(&log)?)
            // The child is in a separate process group, so Ctrl-C reaches only this process. When this process ends,
            // the child is killed.
            .process_group(0)
            .spawn()
            .context("starting sh")?;
        let mut pid = String::new();
        let stdout = supervisor.stdout.take().context("sh without standard output")?;
        BufReader::new(stdout).read_line(&mut pid)?;
        let pid =
            pid.trim().parse().with_context(|| format!("{name}: no process id from sh; see {}", log.display()))?;
        OpenOptions::new().append(true).open(self.join("pids"))?.write_all(format!("{pid}\n").as_bytes())?;
        let lifeline = supervisor.stdin.take();
        // A program that is restarted under the same name appends to the same log file.
        STARTED.with_borrow_mut(|logs| (!logs.contains(&log)).then(|| logs.push(log.clone())));
        Ok(Process { program, log, pid, supervisor, lifeline })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(mut janitor) = self.janitor.take() {
            drop(janitor.stdin.take());
            let _ = janitor.wait();
        }
    }
}

/// The command line and environment of a child, for restarts.
#[derive(Clone)]
struct Program {
    name: String,
    path: PathBuf,
    args: Vec<OsString>,
    env: Vec<(String, String)>,
}

/// A running child. Dropping it kills it.
pub(crate) struct Process {
    program: Program,
    log: PathBuf,
    pid: u32,
    supervisor: Child,
    lifeline: Option<ChildStdin>,
}

impl Process {
    pub(crate) fn pid(&self) -> u32 {
        self.pid
    }

    /// The exit status (128 + signal number when a signal ended it), if it has ended.
    pub(crate) fn exited(&mut self) -> Result<Option<i32>> {
        Ok(self.supervisor.try_wait()?.map(|status| status.code().unwrap_or(-1)))
    }

    /// Sends a signal by name: TERM, STOP, CONT, KILL.
    pub(crate) fn signal(&mut self, signal: &str) -> Result<()> {
        if let Some(status) = self.exited()? {
            bail!("{} has exited with {status}; expected it to run\n{}", self.program.name, self.log_tail(20));
        }
        // The kill of the shell is used, since not every machine has a program of that name.
        let sent =
            Command::new("sh").args(["-c", "kill -s \"$1\" \"$2\"", "sh", signal, &self.pid.to_string()]).status()?;
        if !sent.success() {
            bail!("kill -s {signal} {} ({}): {sent}", self.pid, self.program.name);
        }
        Ok(())
    }

    /// Kills the child with SIGKILL and starts it again, as after a crash.
    pub(crate) fn restart(&mut self, scratch: &Scratch) -> Result<()> {
        self.kill()?;
        self.start_again(scratch)
    }

    /// SIGKILL; [`start_again`](Self::start_again) follows.
    pub(crate) fn kill(&mut self) -> Result<()> {
        self.signal("KILL")?;
        self.supervisor.wait()?;
        Ok(())
    }

    /// Starts what was killed.
    pub(crate) fn start_again(&mut self, scratch: &Scratch) -> Result<()> {
        *self = scratch.run(self.program.clone())?;
        Ok(())
    }

    /// Sends SIGTERM, and waits for the exit status.
    pub(crate) fn stop(&mut self, limit: Duration) -> Result<i32> {
        self.signal("TERM")?;
        self.wait(limit)
    }

    pub(crate) fn wait(&mut self, limit: Duration) -> Result<i32> {
        wait_for(&format!("{} to exit", self.program.name), limit, || Ok(self.exited()?.is_some()))?;
        Ok(self.exited()?.unwrap_or(-1))
    }

    /// The last `lines` lines of its output.
    pub(crate) fn log_tail(&self, lines: usize) -> String {
        tail(&self.log, lines)
    }

    /// Keeps metrics that a test has read, as a log.
    pub(crate) fn log_metrics(&self, metrics: &str) -> Result<()> {
        Ok(std::fs::write(self.log.with_extension("metrics.log"), metrics)?)
    }

    /// Its complete output.
    pub(crate) fn log(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.lifeline.take());
        let _ = self.supervisor.wait();
    }
}

fn tail(log: &Path, lines: usize) -> String {
    let text = std::fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let all: Vec<_> = text.lines().collect();
    let name = log.file_stem().unwrap_or_default().display();
    format!("--- {name}\n{}\n", all[all.len().saturating_sub(lines)..].join("\n"))
}
