/**
 * The service under a real systemd: installed by `install-service`, confined as the unit says, with its restarts, watchdog and stop.
 *
 * One container for all tests, which go one after another; each leaves the service running or says that it stopped it. Times of the unit are shortened by a drop-in.
 */
import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { after, test } from 'node:test';
import { type BootedSystem, bootSystem, type FetchResult } from '../support/booted-systemd.ts';
import { eventually } from '../support/idle.ts';
import { TestRepository } from '../support/repository.ts';

const LIMIT_MS = 15_000;
const UNIT = 'batchport.service';
const UNIT_DIRECTORY = '/etc/systemd/system';
/** What systemd's unit files give a meaning to, and a path may hold all the same. */
const MODELS = '/srv/my models/50% "new" $HOME';
const HTTP = 'http://127.0.0.1:8000';
const METRICS = 'http://127.0.0.1:8002';
const LOCK_FILE = '/run/lock/batchport-weights.lock';
const SERVE = ['/opt/node/bin/node', '/opt/batchport/bin/serve'];
const DROP_IN = `${UNIT_DIRECTORY}/${UNIT}.d/test.conf`;
const SHORT_TIMES = { WatchdogSec: '4', TimeoutAbortSec: '1', RestartSec: '200ms' };

const booted = await bootSystem({ after });
const skip = typeof booted === 'string' ? booted : false;
const system = booted as BootedSystem;

interface ServiceState {
  readonly active: string;
  readonly status: string;
  readonly pid: number;
  readonly restarts: number;
  readonly result: string;
  readonly exitStatus: string;
}

/** Other values for lines of the unit. */
function configure(lines: Readonly<Record<string, string>>): void {
  fs.mkdirSync(system.path(path.dirname(DROP_IN)), { recursive: true });
  const text = Object.entries(lines).map(([key, value]) => `${key}=${value}\n`);
  fs.writeFileSync(system.path(DROP_IN), ['[Service]\n', ...text].join(''));
  system.must('systemctl', 'daemon-reload');
}

function service(): ServiceState {
  const shown = system.show(
    UNIT,
    'ActiveState',
    'SubState',
    'StatusText',
    'MainPID',
    'NRestarts',
    'Result',
    'ExecMainStatus',
  );
  return {
    active: `${shown.ActiveState} ${shown.SubState}`,
    status: shown.StatusText ?? '',
    pid: Number(shown.MainPID),
    restarts: Number(shown.NRestarts),
    result: shown.Result ?? '',
    exitStatus: shown.ExecMainStatus ?? '',
  };
}

/** Waits until the service fits, and fails with what it was last and the end of its log. */
async function until(what: string, fits: (state: ServiceState) => boolean): Promise<ServiceState> {
  let state = service();
  await eventually(async () => {
    state = service();
    return fits(state) ? undefined : `${what}: the service is ${JSON.stringify(state)}; ${journal().slice(-2000)}`;
  }, LIMIT_MS);
  return state;
}

/** What the journal has about the service, its own lines and systemd's. */
function journal(...more: string[]): string {
  return system.must('journalctl', '--no-pager', '--output=cat', `--unit=${UNIT}`, ...more);
}

/** Names the end of the journal, to read on from there. */
function journalEnd(): string {
  const cursor = /^-- cursor: (.*)$/m.exec(system.must('journalctl', '--no-pager', '--lines=0', '--show-cursor'))?.[1];
  assert(cursor !== undefined);
  return `--after-cursor=${cursor}`;
}

/** A request to the model "slow", which gives the number of its steps back. */
function stepsOf(steps: number): string {
  return JSON.stringify({ inputs: [{ name: 'steps', datatype: 'INT64', shape: [1, 1], data: [steps] }] });
}

async function get(url: string): Promise<FetchResult> {
  const [answer] = await system.fetch(url);
  return answer!;
}

/** Answers of "slow", checked: each has its own number. */
async function run(...steps: number[]): Promise<void> {
  const answers = await system.fetch(`${HTTP}/v2/models/slow/infer`, ...steps.map(stepsOf));
  const told = answers.map(({ status, body }) => (status === 200 ? JSON.parse(body).outputs[0].data[0] : body));
  assert.deepEqual(told, steps);
}

async function assertAnswers(): Promise<void> {
  assert.equal((await get(`${HTTP}/v2/health/ready`)).status, 200);
  await run(3, 4);
}

function assertGone(pids: readonly number[]): void {
  const left = pids.filter((pid) => fs.existsSync(system.path(`/proc/${pid}`)));
  assert.deepEqual(left, [], 'processes of the service that is gone');
}

let failed: string | undefined;

/** A test that goes on where the one before it ended: after a failure the rest would only wait for what does not come. */
function serial(name: string, action: () => Promise<void>): void {
  test(name, { skip, timeout: 60_000 }, async (t) => {
    if (failed !== undefined) return t.skip(`goes on from "${failed}", which failed`);
    failed = name;
    await action();
    failed = undefined;
  });
}

serial('install-service writes a unit that systemd accepts and starts; started means ready', async () => {
  const repository = new TestRepository(system.path(MODELS));
  repository.add('slow', { config: { max_batch_size: 1 } });
  repository.add('simple');
  const installed = system.must(...SERVE, 'install-service', '--model-repository', MODELS);
  assert.match(installed, /^\/etc\/systemd\/system\/batchport\.service written\nNext:\n {2}systemctl daemon-reload\n/);
  configure(SHORT_TIMES);
  system.must('systemctl', 'enable', UNIT);
  system.must('systemctl', 'start', UNIT);
  await assertAnswers();
  const { active, status, restarts } = service();
  assert.deepEqual([active, status, restarts], ['active running', `2 of 2 models ready at ${HTTP}`, 0]);
});

serial('it runs as a user of its own, confined, and no child of it learns the socket of systemd', async () => {
  const { pid } = service();
  const pids = system.processesOf(UNIT);
  assert(pids.includes(pid) && pids.length >= 3, `${pids}`);
  for (const one of pids) {
    const status = fs.readFileSync(system.path(`/proc/${one}/status`), 'utf8');
    assert.match(status, /^Uid:\t6[1-5]\d\d\d\t/m);
    assert.match(status, /^NoNewPrivs:\t1$/m);
    assert.match(status, /^CapEff:\t0+$/m);
    const environment = fs.readFileSync(system.path(`/proc/${one}/environ`), 'utf8');
    assert.equal(/(^|\0)(NOTIFY_SOCKET|WATCHDOG_USEC)=/.test(environment), one === pid, `environment of ${one}`);
  }
  const { body } = await get(`${METRICS}/status`);
  assert.equal(JSON.parse(body).loads.weight_lock.file, LOCK_FILE);
  const inside = (...command: string[]) => system.run('nsenter', '-t', String(pid), '-m', '--', ...command);
  assert.match(inside('touch', '/etc/batchport-was-here').stderr, /Read-only file system/);
  assert.match(inside('ls', '/run/batchport').stdout, /^server-\d+\.json\n$/);
});

serial('a killed child is the business of the supervisor: systemd restarts nothing', async () => {
  const before = service();
  const [child] = system.processesOf(UNIT).filter((pid) => pid !== before.pid);
  system.must('kill', '-KILL', String(child));
  await until('every model ready', ({ status }) => status.startsWith('2 of 2 models ready'));
  await eventually(() => run(5).then(() => undefined, String), LIMIT_MS);
  const { pid, restarts } = service();
  assert.deepEqual([pid, restarts], [before.pid, before.restarts]);
});

serial('a reload is passed on to the supervisor, and restarts nothing', async () => {
  const before = service();
  const since = journalEnd();
  system.must('systemctl', 'reload', UNIT);
  await eventually(async () => (/told to try again/.test(journal(since)) ? undefined : journal(since)), LIMIT_MS);
  assert.deepEqual(service(), before);
});

serial('a killed supervisor is started again, and nothing of the first one is left', async () => {
  const before = service();
  const pids = system.processesOf(UNIT);
  system.must('kill', '-KILL', String(before.pid));
  await until('restarted', ({ active, restarts }) => active === 'active running' && restarts === before.restarts + 1);
  assertGone(pids);
  await assertAnswers();
});

serial('a supervisor that no longer turns is killed by the watchdog and started again', async () => {
  const before = service();
  const pids = system.processesOf(UNIT);
  const since = journalEnd();
  system.must('kill', '-STOP', String(before.pid));
  await until('restarted', ({ active, restarts }) => active === 'active running' && restarts === before.restarts + 1);
  assert.match(journal(since), /Watchdog timeout/);
  assertGone(pids);
  await assertAnswers();
});

serial('a start that waits for weights is given time, says why, and is ready only after it', async () => {
  system.must('systemctl', 'stop', UNIT);
  configure({ ...SHORT_TIMES, TimeoutStartSec: '8' });
  system.must('systemd-run', '--unit=holder', '--property=Type=exec', 'flock', LOCK_FILE, 'sleep', '10');
  const holder = Number(system.show('holder', 'MainPID').MainPID);
  system.must('systemctl', 'start', '--no-block', UNIT);
  const waiting = await until('waiting', ({ status }) => status.includes('waiting to load'));
  assert.equal(waiting.active, 'activating start');
  assert.match(
    waiting.status,
    /^0 of 2 models ready, waiting to load \w+\/1 on cpu until process \d+ has loaded its own, 1 more to load$/,
  );
  assert.equal((await get(`${HTTP}/v2/health/ready`)).status, 503);
  assert(fs.existsSync(system.path(`/proc/${holder}`)));
  const { pid, restarts } = await until('started', ({ active }) => active === 'active running');
  assert.equal(fs.existsSync(system.path(`/proc/${holder}`)), false, 'the lock was free before the service was ready');
  assert.deepEqual([pid, restarts], [waiting.pid, 0]);
  await assertAnswers();
});

/** Requests of about a second each, seen in flight. On a busy machine they may be over before anybody could look: then others are sent. */
async function inFlight(): Promise<{ readonly whole: Promise<unknown> }> {
  for (let attempt = 0; attempt < 10; attempt++) {
    let over = false;
    const whole = run(30_001, 30_002, 30_003).finally(() => {
      over = true;
    });
    while (!over) {
      const { body } = await get(`${METRICS}/metrics`);
      if (/^batchport_requests_in_flight\{model="slow".*\} 3$/m.test(body)) return { whole };
    }
    await whole;
  }
  throw new Error('requests are over before they can be seen');
}

serial('a stop answers what is in flight and ends by itself: exit 0, nothing killed', async () => {
  const pids = system.processesOf(UNIT);
  const since = journalEnd();
  const answers = await inFlight();
  system.must('systemctl', 'stop', '--no-block', UNIT);
  await until(
    'stopping',
    ({ active, status }) => active === 'deactivating stop-sigterm' && status.startsWith('stopping'),
  );
  await answers.whole;
  const { result, exitStatus } = await until('stopped', ({ active }) => active === 'inactive dead');
  assert.deepEqual([result, exitStatus], ['success', '0']);
  assert.doesNotMatch(journal(since), /SIGKILL|signal KILL|timed out|Killing/i);
  assertGone(pids);
});

serial('a port below 1024 is listened on without more rights than that', async () => {
  system.must(...SERVE, 'install-service', '--model-repository', MODELS, '--force', '--http-port', '80');
  system.must('systemctl', 'daemon-reload');
  system.must('systemctl', 'start', UNIT);
  assert.equal((await get('http://127.0.0.1/v2/health/ready')).status, 200);
  const status = fs.readFileSync(system.path(`/proc/${service().pid}/status`), 'utf8');
  // CAP_NET_BIND_SERVICE.
  assert.match(status, /^CapEff:\t0000000000000400$/m);
  system.must('systemctl', 'stop', UNIT);
});

serial('a wrong command line is not tried again and again', async () => {
  const wrong = system.run(...SERVE, 'install-service', '--model-repository', MODELS, '--force', '--http-port', '8002');
  assert.notEqual(wrong.status, 0);
  configure({ ...SHORT_TIMES, ExecStart: `\nExecStart=${SERVE.join(' ')} run --htp-port 1` });
  assert.notEqual(system.run('systemctl', 'start', UNIT).status, 0);
  const { active, restarts, exitStatus } = await until('failed', ({ active }) => active === 'failed failed');
  assert.deepEqual([active, restarts, exitStatus], ['failed failed', 0, '2']);
});
