//! Rotations while everything around them fails at random: agents, webhooks, API server, etcd, istiod and gateways are killed or
//! stopped, and agents are cut off.

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use crate::{
    journal::DOWN,
    kept,
    testbed::{Link, Process, Seed, User, gateway_name},
    world::World,
};

/// Faults begin within this time after the start of a rotation.
const FAULTS_FOR: Duration = Duration::from_secs(25);
/// Longest time between two draws.
const NEXT: Duration = Duration::from_secs(3);
/// Longest duration of a fault: twice the agents' lease duration, so that a stopped leader loses its Lease and goes on as if it had it.
const LASTS: Duration = Duration::from_secs(6);
/// Limit for the requests of both agents. Without faults, one with `--poll=2s` makes about a fifth of it.
const REQUESTS_PER_MINUTE: f64 = 6000.0;

/// A fault. All but the last three last for a while, next to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    AgentKilled(usize),
    AgentStopped(usize),
    /// Nothing passes between it and the API server.
    AgentCut(usize),
    WebhooksKilled,
    WebhooksStopped,
    IstiodStopped,
    GatewayKilled(usize),
    EtcdStopped,
    EtcdKilled,
    ApiServerKilled,
}

use Fault::{
    AgentCut, AgentKilled, AgentStopped, ApiServerKilled, EtcdKilled, EtcdStopped, GatewayKilled, IstiodStopped,
    WebhooksKilled, WebhooksStopped,
};

const ALL: [Fault; 14] = [
    AgentKilled(0),
    AgentKilled(1),
    AgentStopped(0),
    AgentStopped(1),
    AgentCut(0),
    AgentCut(1),
    WebhooksKilled,
    WebhooksStopped,
    IstiodStopped,
    GatewayKilled(0),
    GatewayKilled(1),
    EtcdStopped,
    EtcdKilled,
    ApiServerKilled,
];

impl Fault {
    /// Whether both cannot be there at the same time: they have one victim, or one ends only when the other has.
    fn excludes(self, other: Self) -> bool {
        match (self, other) {
            (
                AgentKilled(one) | AgentStopped(one) | AgentCut(one),
                AgentKilled(two) | AgentStopped(two) | AgentCut(two),
            ) => one == two,
            (WebhooksKilled | WebhooksStopped, WebhooksKilled | WebhooksStopped) => true,
            // A gateway that starts waits for istiod.
            (GatewayKilled(_) | IstiodStopped, GatewayKilled(_) | IstiodStopped) => true,
            _ => false,
        }
    }
}

/// An agent that reaches the API server by a separate link.
struct Agent {
    name: &'static str,
    link: Link,
    /// `None` while it is killed.
    process: Option<Process>,
}

impl Agent {
    fn start(world: &World<'_>, name: &'static str) -> Result<Self> {
        let mut agent = Self { name, link: Link::start(world.cluster, User::Agent)?, process: None };
        agent.start_again(world)?;
        Ok(agent)
    }

    fn start_again(&mut self, world: &World<'_>) -> Result<()> {
        self.process = Some(world.agents.start_with(self.name, self.link.kubeconfig(), "2s")?);
        Ok(())
    }

    fn signal(&mut self, signal: &str) -> Result<()> {
        self.process.as_mut().context("no agent")?.signal(signal)
    }
}

/// One rotation with faults, then without them until it has ended.
pub(crate) fn rotation(world: &mut World<'_>) -> Result<()> {
    let started = Instant::now();
    // Each rotation of a run has other faults.
    let mut seed = Seed::of_run(&format!("chaos {}", world.notes.len()));
    let before = requests(world)?;
    world.agent = None;
    let mut agents = [Agent::start(world, "chaos-0")?, Agent::start(world, "chaos-1")?];
    kept::begin(world)?;
    let mut faults: Vec<(Fault, Instant)> = Vec::new();
    let mut drawn = Vec::new();
    let end = Instant::now() + FAULTS_FOR;
    while Instant::now() < end {
        let fault = ALL[usize::try_from(seed.below(ALL.len() as u64))?];
        if !faults.iter().any(|(other, _)| fault.excludes(*other)) {
            let lasts = random(&mut seed, LASTS);
            drawn.push(format!("{fault:?}"));
            faults.push((fault, Instant::now() + lasts));
            step(world, &faults);
            begin(world, &mut agents, fault, lasts)?;
        }
        sleep(random(&mut seed, NEXT));
        let now = Instant::now();
        for at in (0..faults.len()).rev().filter(|at| faults[*at].1 <= now).collect::<Vec<_>>() {
            finish(world, &mut agents, faults[at].0)?;
            faults.remove(at);
            step(world, &faults);
        }
    }
    faults.into_iter().try_for_each(|(fault, _)| finish(world, &mut agents, fault))?;
    kept::wait_steady(world)?;
    // The next scenario's agent does not need the link.
    drop(agents);
    world.agent = Some(world.agents.start("first")?);
    let minutes = started.elapsed().as_secs_f64() / 60.0;
    let rate = (requests(world)? - before) as f64 / minutes;
    world.notes.push(format!("  {rate:.0} requests of agents in a minute; faults: {}", drawn.join(", ")));
    ensure!(
        rate < REQUESTS_PER_MINUTE,
        "{rate:.0} requests of agents in a minute, expected under {REQUESTS_PER_MINUTE}"
    );
    Ok(())
}

/// Records which faults there are.
fn step(world: &World<'_>, faults: &[(Fault, Instant)]) {
    let name = |(fault, _): &(Fault, Instant)| match fault {
        GatewayKilled(number) => format!("{} {DOWN}", gateway_name(*number)),
        fault => format!("{fault:?}"),
    };
    world.step(&faults.iter().map(name).collect::<Vec<_>>().join(" and "));
}

fn random(seed: &mut Seed, most: Duration) -> Duration {
    Duration::from_millis(seed.below(u64::try_from(most.as_millis()).unwrap_or(u64::MAX)))
}

/// The number of requests of agents in this namespace.
fn requests(world: &World<'_>) -> Result<usize> {
    let requests = world.cluster.requests(User::Agent)?;
    Ok(requests.iter().filter(|request| request.namespace == world.ns).count())
}

fn begin(world: &mut World<'_>, agents: &mut [Agent], fault: Fault, lasts: Duration) -> Result<()> {
    match fault {
        AgentKilled(number) => agents[number].process = None,
        AgentStopped(number) => agents[number].signal("STOP")?,
        AgentCut(number) => agents[number].link.cut(),
        WebhooksKilled => world.server.kill(),
        WebhooksStopped => world.server.pause()?,
        IstiodStopped => world.istiod.pause()?,
        GatewayKilled(number) => world.gateways.kill(number)?,
        EtcdStopped => world.cluster.stop_etcd(lasts / 2)?,
        EtcdKilled => world.cluster.restart_etcd()?,
        ApiServerKilled => world.cluster.restart_api_server()?,
    }
    Ok(())
}

fn finish(world: &mut World<'_>, agents: &mut [Agent], fault: Fault) -> Result<()> {
    match fault {
        AgentKilled(number) => agents[number].start_again(world)?,
        AgentStopped(number) => agents[number].signal("CONT")?,
        AgentCut(number) => agents[number].link.restore(),
        WebhooksKilled => world.server.start_again()?,
        WebhooksStopped => world.server.resume()?,
        IstiodStopped => world.istiod.resume()?,
        GatewayKilled(number) => world.gateways.start_again(number)?,
        // They have ended already.
        EtcdStopped | EtcdKilled | ApiServerKilled => {}
    }
    Ok(())
}
