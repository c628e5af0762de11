/** The watch over a process: what it makes of what it sees, and that a watcher that slept blames nobody. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { initialVigil, look, type RunSeen, type VigilLook, type VigilState } from '../../../src/scheduler/vigil.ts';

const TICK_MS = 100;
const POLICY = {
  stoppedMaxMs: 2000,
  silentMaxMs: 10_000,
  startMaxMs: 60_000,
  cancelGraceMs: 2000,
  lookMaxMs: 1000,
};

class Watch {
  state: VigilState = initialVigil(POLICY);
  nowMs = 0;

  look(seen: Partial<VigilLook>, stepMs = TICK_MS) {
    this.nowMs += stepMs;
    const { state, verdict, cancel } = look(this.state, {
      nowMs: this.nowMs,
      starting: false,
      stopped: false,
      heard: true,
      runs: [],
      ...seen,
    });
    this.state = state;
    return { ...verdict, cancel: cancel.map(({ id }) => id) };
  }

  /** Looks every tick for `ms`; the last answer. */
  for(ms: number, seen: Partial<VigilLook>) {
    let last = this.look(seen);
    for (let passed = TICK_MS; passed < ms; passed += TICK_MS) last = this.look(seen);
    return last;
  }
}

function run(id: string, forMs: number, limitMs = 5000): RunSeen {
  return { id, what: 'm/1', forMs, limitMs };
}

test('a process that speaks and is not stopped is sound', () => {
  assert.equal(new Watch().for(5000, {}).is, 'sound');
});

test('a stopped process is suspect at once and condemned after two seconds', () => {
  const watch = new Watch();
  watch.look({});
  assert.equal(watch.look({ stopped: true, heard: false }).is, 'suspect');
  assert.equal(watch.for(1800, { stopped: true, heard: false }).is, 'suspect');
  const verdict = watch.look({ stopped: true, heard: false });
  assert.equal(verdict.is, 'condemned');
  assert.equal(verdict.is === 'condemned' && verdict.kind, 'stopped');
});

test('a process that goes on before two seconds are over is sound again', () => {
  const watch = new Watch();
  watch.for(1900, { stopped: true, heard: false });
  assert.equal(watch.look({}).is, 'sound');
  assert.equal(watch.for(1900, { stopped: true, heard: false }).is, 'suspect');
});

test('a silent process is suspect after half of the time and condemned after all of it', () => {
  const watch = new Watch();
  watch.look({});
  assert.equal(watch.for(4900, { heard: false }).is, 'sound');
  assert.equal(watch.look({ heard: false }).is, 'suspect');
  assert.equal(watch.for(4900, { heard: false }).is, 'suspect');
  assert.equal(watch.look({ heard: false }).is, 'condemned');
});

test('one word ends the silence', () => {
  const watch = new Watch();
  watch.for(9900, { heard: false });
  assert.equal(watch.look({ heard: true }).is, 'sound');
  assert.equal(watch.for(4000, { heard: false }).is, 'sound');
});

test('a process that starts may be silent, but not for ever', () => {
  const watch = new Watch();
  watch.look({ starting: true, heard: false });
  assert.equal(watch.for(59_900, { starting: true, heard: false }).is, 'sound');
  const verdict = watch.look({ starting: true, heard: false });
  assert.equal(verdict.is === 'condemned' && verdict.kind, 'start too long');
});

test('a watcher that was stopped itself blames nobody for the time it did not see', () => {
  const watch = new Watch();
  watch.look({});
  watch.look({ stopped: true, heard: false });
  assert.equal(watch.look({ stopped: true, heard: false }, 3_600_000).is, 'suspect');
  const silent = new Watch();
  silent.look({});
  assert.equal(silent.look({ heard: false }, 3_600_000).is, 'sound');
});

test('a run over its limit is cancelled once, and its process condemned when it goes on for two more seconds', () => {
  const watch = new Watch();
  assert.deepEqual(watch.look({ runs: [run('a', 5000)] }).cancel, []);
  const first = watch.look({ runs: [run('a', 5100)] });
  assert.equal(first.is, 'suspect');
  assert.deepEqual(first.cancel, ['a']);
  const later = watch.for(1900, { runs: [run('a', 7000)] });
  assert.equal(later.is, 'suspect');
  assert.deepEqual(later.cancel, []);
  const end = watch.look({ runs: [run('a', 7100)] });
  assert.equal(end.is === 'condemned' && end.kind, 'run too long');
  assert.match(end.is === 'condemned' ? end.reason : '', /a run of m\/1 passed its limit of 5 s/);
});

test('a run that ends after it was cancelled leaves a sound process, and the next one has its whole time', () => {
  const watch = new Watch();
  watch.look({ runs: [run('a', 5100)] });
  assert.equal(watch.look({}).is, 'sound');
  assert.deepEqual(watch.look({ runs: [run('b', 100)] }).cancel, []);
  assert.deepEqual(watch.look({ runs: [run('b', 5100)] }).cancel, ['b']);
  assert.equal(watch.for(1900, { runs: [run('b', 7000)] }).is, 'suspect');
});

test('each run has its own limit and its own grace', () => {
  const watch = new Watch();
  assert.deepEqual(watch.look({ runs: [run('a', 1500, 1000), run('b', 1500)] }).cancel, ['a']);
  watch.for(1500, { runs: [run('a', 3000, 1000), run('b', 3000)] });
  assert.deepEqual(watch.look({ runs: [run('b', 5100)] }).cancel, ['b']);
  assert.equal(watch.for(1900, { runs: [run('b', 7000)] }).is, 'suspect');
});

test('nothing is remembered of runs that are over', () => {
  const watch = new Watch();
  for (let n = 0; n < 100; n++) watch.look({ runs: [run(`run ${n}`, 6000)] });
  assert.equal(watch.state.cancelled.size, 1);
});
