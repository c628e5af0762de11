/**
 * The memory account of an instance. The arena is made up: it holds regions that are taken from a limit, in one piece each, as ONNX Runtime's does, and that stay until
 * a run gives back what is free.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ArenaRoom } from '../../../src/device/arena-room.ts';
import { ArenaPoisoned, type Measured, RunMemory, type RunMemoryOptions } from '../../../src/device/run-memory.ts';
import { COUNTER_WORDS, InstanceCounters, readInstance } from '../../../src/metrics/counters.ts';
import { encodeKey, SlabLayout } from '../../../src/queue/layout.ts';
import { OrtError } from '../../../src/runtime/ort-error.ts';
import { seedFromEnv } from '../../support/random.ts';

const MIB = 2 ** 20;
const SIGNATURE = {
  inputs: [{ name: 'x', datatype: 'FP32', shape: [-1, -1], symbols: ['N', 'T'] }],
  outputs: [{ name: 'y', datatype: 'FP32', shape: [-1, 1], symbols: ['N', ''] }],
  skippedOutputs: [],
  metadata: { producer: '', graphName: '', description: '', version: '', custom: {} },
} as const;

/** The layout of rows of so many elements. */
function rowsOf(elements: number): SlabLayout {
  return new SlabLayout(SIGNATURE, encodeKey(false, [0], [[elements]]), 64);
}

class FakeArena {
  readonly limitBytes: number;
  readonly weightsBytes: number;
  /** Free regions. */
  regions: number[] = [];
  leakedBytes = 0;
  peakBytes: number;
  runs: { rows: number; bytes: number }[] = [];
  failures = 0;

  constructor(limitMib: number, weightsMib = 0) {
    this.limitBytes = limitMib * MIB;
    this.weightsBytes = weightsMib * MIB;
    this.peakBytes = this.weightsBytes;
  }

  get heldBytes(): number {
    return this.regions.reduce((sum, bytes) => sum + bytes, this.weightsBytes + this.leakedBytes);
  }

  state = () => ({
    inUseBytes: this.weightsBytes + this.leakedBytes,
    peakBytes: this.peakBytes,
    heldBytes: this.heldBytes,
  });

  /** Loses memory that was free. */
  leak(mib: number): void {
    this.regions = [];
    this.leakedBytes += mib * MIB;
  }

  /** One run that needs so much in one piece. */
  run(rows: number, bytes: number, giveBack: boolean): void {
    try {
      if (!this.regions.some((region) => region >= bytes)) {
        if (this.heldBytes + bytes > this.limitBytes) {
          this.failures++;
          throw new OrtError(
            1,
            `Available memory of ${this.limitBytes - this.heldBytes} is smaller than requested bytes of ${bytes}`,
          );
        }
        this.regions.push(bytes);
      }
      this.peakBytes = Math.max(this.peakBytes, this.weightsBytes + this.leakedBytes + bytes);
      this.runs.push({ rows, bytes });
    } finally {
      if (giveBack) this.regions = [];
    }
  }
}

function makeMemory(arena: FakeArena, changes: Partial<RunMemoryOptions> = {}) {
  const words = new Float64Array(COUNTER_WORDS);
  const measured: Measured[] = [];
  const roomBytes = arena.limitBytes - arena.weightsBytes;
  const memory = new RunMemory({
    slot: 0,
    room: new ArenaRoom(roomBytes, ArenaRoom.memory()),
    roomBytes,
    baseBytes: arena.weightsBytes,
    keys: [],
    canGrow: false,
    recycleFromUs: 0,
    counters: new InstanceCounters(words, 0),
    arena: arena.state,
    onWait: () => {},
    onMeasured: (one) => measured.push(one),
    ...changes,
  });
  /** Runs a batch as the batch runner does: in parts as large as the account lets it. */
  const serve = (layout: SlabLayout, rows: number, rowBytes: number): number[] => {
    const parts: number[] = [];
    for (let done = 0; done < rows; ) {
      const count = Math.min(rows - done, memory.rowsMax(layout));
      try {
        memory.run(layout, count, (giveBack) => arena.run(count, count * rowBytes, giveBack));
        parts.push(count);
        done += count;
      } catch (error) {
        if (!(error instanceof OrtError) || count === 1) throw error;
      }
    }
    return parts;
  };
  return { memory, measured, serve, counts: () => readInstance(words, 0) };
}

const point = (rows: number, mib: number) => ({ rows, bytes: mib * MIB });
const SIXTEEN_A_ROW = [{ key: '4', elements: 4, points: [1, 2, 4, 8].map((rows) => point(rows, 16 * rows)) }];

test('batches have as many rows as the account says fit, from the first one on', () => {
  const arena = new FakeArena(335);
  const { serve } = makeMemory(arena, { keys: SIXTEEN_A_ROW });
  assert.deepEqual(serve(rowsOf(4), 32, 16 * MIB), [20, 12]);
  assert.equal(arena.failures, 0);
});

test('what is not known is measured as it comes, and kept to from then on', () => {
  const arena = new FakeArena(335, 15);
  const { serve, measured } = makeMemory(arena);
  for (const rows of [1, 2, 3, 10, 10, 10]) serve(rowsOf(4), rows, 16 * MIB);
  assert.deepEqual(measured.at(-1), { key: '4', elements: 4, point: point(10, 160) });
  assert.equal(measured.length, 4, 'only what was larger than before');
  assert.deepEqual(serve(rowsOf(4), 32, 16 * MIB).at(0), 19);
});

test('without a limit nothing is capped, and runs are measured all the same', () => {
  const arena = new FakeArena(100_000);
  const { memory, serve, measured } = makeMemory(arena, { roomBytes: Number.POSITIVE_INFINITY });
  assert.deepEqual(serve(rowsOf(4), 64, 16 * MIB), [64]);
  assert.equal(memory.rowsMax(rowsOf(4)), Number.POSITIVE_INFINITY);
  assert.equal(measured.length, 1);
});

test('a shape that needs more than was guessed finds its size by failing, and no request fails for it', () => {
  const arena = new FakeArena(345);
  const { serve } = makeMemory(arena, { keys: SIXTEEN_A_ROW });
  // Twice the elements, four times the memory.
  const parts = Array.from({ length: 100 }, () => serve(rowsOf(8), 8, 64 * MIB)).flat();
  assert.equal(parts.at(-1)! + parts.at(-2)!, 8);
  assert(parts.slice(-20).some((rows) => rows === 5));
  assert(arena.failures <= 12, `${arena.failures} failures`);
});

test('an arena cut up by runs of other sizes is put in order, and the size that failed for it is run again', () => {
  const arena = new FakeArena(335);
  const { serve, counts } = makeMemory(arena, { keys: SIXTEEN_A_ROW });
  for (const rows of [3, 5, 7]) serve(rowsOf(4), rows, 16 * MIB);
  assert.deepEqual(serve(rowsOf(4), 20, 16 * MIB), [20]);
  assert.deepEqual(serve(rowsOf(4), 20, 16 * MIB), [20], 'and it is not held against the model');
  assert(counts().outOfMemory <= 2);
});

// Story: as load came up, batches of 1, 2, 3 … 64 rows each left a piece of the arena, thirty times what the largest of them took.
test('sizes that grow a little at a time do not add up in the arena', () => {
  const arena = new FakeArena(100_000);
  const { serve, counts } = makeMemory(arena, { keys: SIXTEEN_A_ROW, roomBytes: Number.POSITIVE_INFINITY });
  for (let rows = 1; rows <= 64; rows++) {
    serve(rowsOf(4), rows, 16 * MIB);
    assert(arena.heldBytes <= 3.3 * rows * 16 * MIB + 16 * MIB, `${arena.heldBytes / MIB} MiB after ${rows} rows`);
  }
  const before = counts().gaveBack;
  assert(before < 32, `${before} times`);
  for (let n = 0; n < 1000; n++) serve(rowsOf(4), 1 + ((n * 7) % 64), 16 * MIB);
  assert(counts().gaveBack - before < 8, 'sizes that have been seen are no reason');
});

test('one row that can never fit is an error, and nothing else', () => {
  const arena = new FakeArena(100);
  const { memory } = makeMemory(arena);
  const run = () => memory.run(rowsOf(4), 1, (giveBack) => arena.run(1, 101 * MIB, giveBack));
  for (let n = 0; n < 3; n++) assert.throws(run, OrtError);
});

test('a row that fitted before and finds the arena full of what nobody uses gives the arena up', () => {
  const arena = new FakeArena(100);
  const { memory } = makeMemory(arena);
  const run = () => memory.run(rowsOf(4), 1, (giveBack) => arena.run(1, 60 * MIB, giveBack));
  run();
  arena.leak(50);
  assert.throws(
    run,
    (error: Error) => error instanceof ArenaPoisoned && /50\.0 MiB of the arena are lost/.test(error.message),
  );
});

test('a row that needs more than others of its shape is an error of its own: the arena is as it was', () => {
  const arena = new FakeArena(100);
  const { memory } = makeMemory(arena);
  memory.run(rowsOf(4), 1, (giveBack) => arena.run(1, 60 * MIB, giveBack));
  assert.throws(() => memory.run(rowsOf(4), 1, (giveBack) => arena.run(1, 101 * MIB, giveBack)), OrtError);
  memory.run(rowsOf(4), 1, (giveBack) => arena.run(1, 60 * MIB, giveBack));
});

test('a row that needs more than the whole arena, which could have been larger, is known to, and the arena is given up', () => {
  const arena = new FakeArena(100);
  const { memory, measured } = makeMemory(arena, { canGrow: true });
  assert.throws(
    () => memory.run(rowsOf(4), 1, (giveBack) => arena.run(1, 101 * MIB, giveBack)),
    (error: Error) => error instanceof ArenaPoisoned && /more than the 100\.0 MiB/.test(error.message),
  );
  assert.deepEqual(measured.at(-1), { key: '4', elements: 4, point: point(1, 150) });
});

test('an arena is not given up soon after the one before it was', () => {
  const arena = new FakeArena(100);
  const { memory } = makeMemory(arena, { recycleFromUs: Number.POSITIVE_INFINITY });
  const run = () => memory.run(rowsOf(4), 1, (giveBack) => arena.run(1, 60 * MIB, giveBack));
  run();
  arena.leak(50);
  assert.throws(run, OrtError);
});

test('a fault that has nothing to do with memory passes through, and the room is free again', () => {
  const arena = new FakeArena(100);
  const room = new ArenaRoom(100 * MIB, ArenaRoom.memory());
  const { memory } = makeMemory(arena, { keys: SIXTEEN_A_ROW, room });
  const fault = new OrtError(1, 'the model failed');
  assert.throws(
    () =>
      memory.run(rowsOf(4), 2, () => {
        throw fault;
      }),
    fault,
  );
  assert.equal(room.freeBytes, 100 * MIB);
});

test('whatever comes in whatever sizes, each row is run once and no request fails that fits alone', () => {
  const random = seedFromEnv();
  for (let world = 0; world < 100; world++) {
    const arena = new FakeArena(random.int(64, 512), random.int(0, 32));
    const { serve, memory } = makeMemory(arena, { keys: random.chance(0.5) ? SIXTEEN_A_ROW : [] });
    const room = arena.limitBytes - arena.weightsBytes;
    for (let n = 0; n < 60; n++) {
      const elements = random.pick([4, 8, 16, 32]);
      const rowBytes = Math.min(room, elements * elements * MIB * random.pick([0.25, 1]));
      const rows = random.int(1, 64);
      const parts = serve(rowsOf(elements), rows, rowBytes);
      assert.equal(
        parts.reduce((sum, part) => sum + part, 0),
        rows,
      );
      assert(arena.heldBytes <= arena.limitBytes);
    }
    memory.close();
  }
});
