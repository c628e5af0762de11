import assert from 'node:assert/strict';
import { test } from 'node:test';
import { type ArenaUpkeep, initialUpkeep, look, WINDOW_MS } from '../../../src/scheduler/arena-upkeep.ts';
import { seedFromEnv } from '../../support/random.ts';

const MIB = 2 ** 20;
const LOOK_MS = 1000;

/** An arena as ONNX Runtime has it: it grows with the largest run, holds a little more than that, and shrinks when it is told to. */
class World {
  nowMs = 0;
  held = 0;
  timesGivenBack = 0;
  readonly #slack: number;
  #state: ArenaUpkeep = initialUpkeep(0);
  #told = false;

  constructor(slack = 1) {
    this.#slack = slack;
  }

  /** @param known what the account thinks that the runs need; 'unknown' where it cannot tell. */
  serve(seconds: number, runBytes: number, known: number | 'unknown' = runBytes): void {
    const neededBytes = known === 'unknown' ? undefined : known;
    for (let second = 0; second < seconds; second++) {
      this.nowMs += LOOK_MS;
      if (this.#told) {
        this.held = 0;
        this.#told = false;
        this.timesGivenBack++;
      }
      this.held = Math.max(this.held, runBytes * this.#slack);
      const { state, giveBack } = look(this.#state, { nowMs: this.nowMs, heldBytes: this.held, neededBytes });
      this.#state = state;
      this.#told ||= giveBack;
    }
  }
}

test('what a peak leaves behind is given back, once, after the peak has been over for a while', () => {
  const world = new World();
  world.serve(30, 300 * MIB);
  assert.equal(world.held, 300 * MIB);
  world.serve(WINDOW_MS / LOOK_MS - 1, MIB);
  assert.equal(world.held, 300 * MIB, 'another peak may follow');
  world.serve((2 * WINDOW_MS) / LOOK_MS, MIB);
  assert.equal(world.held, MIB);
  world.serve(3600, MIB);
  assert.equal(world.timesGivenBack, 1);
});

test('peaks that follow each other keep their memory', () => {
  const world = new World();
  for (let n = 0; n < 100; n++) {
    world.serve(1, 300 * MIB);
    world.serve(3, MIB);
  }
  assert.equal(world.timesGivenBack, 0);
});

test('little is not worth it', () => {
  const world = new World();
  world.serve(30, 15 * MIB);
  world.serve(3600, MIB);
  assert.equal(world.timesGivenBack, 0);
});

test('where nobody knows what the runs need, nothing is given back', () => {
  const world = new World();
  world.serve(30, 300 * MIB, 'unknown');
  world.serve(3600, MIB, 'unknown');
  assert.equal(world.timesGivenBack, 0);
});

test('runs that need more than the account thinks are disturbed ever more rarely', () => {
  const world = new World();
  world.serve(3600, 300 * MIB, 10 * MIB);
  assert(world.timesGivenBack >= 2 && world.timesGivenBack <= 16, `${world.timesGivenBack} times in an hour`);
});

test('whatever the load, an hour of it is disturbed a few times, and quiet ends with little idle', () => {
  const random = seedFromEnv();
  for (let round = 0; round < 100; round++) {
    const world = new World(1 + random.float());
    const base = random.int(1, 200) * MIB;
    for (let n = random.int(1, 60); n > 0; n--) world.serve(random.int(1, 60), base * random.int(1, 20));
    const hours = world.nowMs / 3_600_000;
    assert(world.timesGivenBack <= 2 + 360 * hours, `${world.timesGivenBack} times in ${hours} h`);
    world.serve(1500, base);
    assert(world.held <= Math.max(2 * base, base + 16 * MIB) + MIB, `${world.held / MIB} of ${base / MIB} MiB`);
  }
});
