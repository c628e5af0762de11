import assert from 'node:assert/strict';
import { test } from 'node:test';
import { BLOCK_BYTES, LINE_BYTES } from '../../../src/queue/geometry.ts';
import { encodeKey, type Placement, SlabLayout } from '../../../src/queue/layout.ts';
import { MATRIX, NUMBERS, signature, tensor, WORDS } from '../../support/queue-models.ts';

const CLAIMS = 8;

test('rows of a batched layout have the sizes of their shapes, and outputs the dimensions of the same name', () => {
  const layout = new SlabLayout(NUMBERS, encodeKey(false, [0, 1], [[5], []]), CLAIMS);
  assert.equal(layout.whole, false);
  assert.deepEqual(
    layout.inputs.map(({ dims, rowElements, rowBytes }) => ({ dims, rowElements, rowBytes })),
    [
      { dims: [5], rowElements: 5, rowBytes: 20 },
      { dims: [], rowElements: 1, rowBytes: 4 },
    ],
  );
  assert.deepEqual(layout.outputs[0]!.tensor?.dims, [5]);
  assert.equal(layout.outputs[1]!.tensor, undefined, 'a dimension without a name is known after the run only');
  assert.equal(layout.rowBytes, 20 + 4 + 20);
});

test('an output is known when each of its dimensions is fixed or named in an input, and never when it is BYTES', () => {
  const model = signature(
    [tensor('a', 'FP32', ['batch', 'h', 'w'])],
    [
      tensor('fixed', 'FP64', ['batch', 10]),
      tensor('turned', 'INT8', ['batch', 'w', 'h', 2]),
      tensor('row', 'BOOL', ['batch']),
      tensor('foreign', 'FP32', ['batch', 'length']),
      tensor('text', 'BYTES', ['batch']),
      tensor('named', 'FP32', ['batch', 'batch']),
    ],
  );
  const layout = new SlabLayout(model, encodeKey(false, [0, 1, 2, 3, 4, 5], [[3, 4]]), CLAIMS);
  assert.deepEqual(
    layout.outputs.map(({ tensor }) => tensor?.dims),
    [[10], [4, 3, 2], [], undefined, undefined, undefined],
    'rows in the batch are not a dimension to count on',
  );
  assert.deepEqual(
    layout.outputs.map(({ tensor }) => tensor?.rowBytes),
    [80, 24, 1, undefined, undefined, undefined],
  );
});

test('a whole layout takes full shapes, and names its first dimension too', () => {
  const layout = new SlabLayout(MATRIX, encodeKey(true, [0], [[2, 3]]), CLAIMS);
  assert.equal(layout.whole, true);
  assert.deepEqual(layout.inputs[0]!.dims, [2, 3]);
  assert.deepEqual(layout.outputs[0]!.tensor?.dims, [3, 2]);
  assert.equal(layout.inputs[0]!.rowBytes, 24);
});

test('the outputs that were asked for are those of the layout, in the order of the key', () => {
  const layout = new SlabLayout(NUMBERS, encodeKey(false, [1], [[5], []]), CLAIMS);
  assert.deepEqual(
    layout.outputs.map(({ index }) => index),
    [1],
  );
});

function parts(layout: SlabLayout, placement: Placement): [start: number, bytes: number][] {
  const { capacityRows } = placement;
  return [
    [0, layout.key.length],
    [placement.heapReferences, layout.bytesInputs.length * CLAIMS * 16],
    ...layout.inputs.map(({ rowBytes }, n): [number, number] => [placement.inputs[n]!, rowBytes * capacityRows]),
    ...layout.outputs.flatMap(({ tensor }, n): [number, number][] =>
      tensor === undefined ? [] : [[placement.outputs[n]!, tensor.rowBytes * capacityRows]],
    ),
    [placement.heap, placement.heapBytes],
  ];
}

test('the parts of a slab start on lines, follow one another and end inside its blocks', () => {
  const layouts = [
    new SlabLayout(NUMBERS, encodeKey(false, [0, 1], [[5], []]), CLAIMS),
    new SlabLayout(WORDS, encodeKey(false, [0, 1], [[2], []]), CLAIMS),
    new SlabLayout(MATRIX, encodeKey(true, [0], [[100, 300]]), CLAIMS),
    new SlabLayout(NUMBERS, encodeKey(false, [0], [[0], []]), CLAIMS),
  ];
  for (const layout of layouts) {
    for (const [capacity, heapBytes] of [
      [1, 0],
      [7, 64],
      [32, 100_000],
    ] as const) {
      const placement = layout.place(capacity, heapBytes);
      let end = 0;
      for (const [start, bytes] of parts(layout, placement)) {
        assert.equal(start % LINE_BYTES, 0);
        assert.ok(start >= end, `a part at ${start} begins inside the one before, which ends at ${end}`);
        end = start + bytes;
      }
      assert.ok(end <= placement.totalBytes && placement.totalBytes < placement.blocks * BLOCK_BYTES);
    }
  }
});

test('placements are the same for the same numbers, however many others were asked for between', () => {
  const layout = new SlabLayout(WORDS, encodeKey(false, [0], [[2], []]), CLAIMS);
  const before = layout.place(4, 1 << 16);
  for (let capacity = 1; capacity < 40; capacity++) layout.place(capacity, 1 << 17);
  assert.deepEqual(layout.place(4, 1 << 16), before);
});

test('keys are equal exactly for equal shapes, outputs and wholeness, and so are their hashes here', () => {
  const keys = [
    encodeKey(false, [0], [[5], []]),
    encodeKey(false, [0, 1], [[5], []]),
    encodeKey(false, [1], [[5], []]),
    encodeKey(true, [0], [[5], []]),
    encodeKey(false, [0], [[6], []]),
    encodeKey(false, [0], [[5, 1], []]),
    encodeKey(false, [0], [[], [5]]),
  ];
  assert.equal(new Set(keys.map(String)).size, keys.length);
  const hashes = keys.slice(0, 3).map((key) => new SlabLayout(NUMBERS, key, CLAIMS).hash);
  assert.equal(new Set(hashes).size, 3);
  assert.equal(hashes[0], new SlabLayout(NUMBERS, encodeKey(false, [0], [[5], []]), CLAIMS).hash);
  assert.ok(hashes.every((hash) => hash !== 0));
});

test('a key that is none of this model is refused', () => {
  assert.throws(() => new SlabLayout(NUMBERS, encodeKey(false, [0], [[5]]), CLAIMS), /does not fit/);
  assert.throws(() => new SlabLayout(NUMBERS, encodeKey(false, [0], [[5], [], []]), CLAIMS), /does not fit/);
  assert.throws(() => new SlabLayout(NUMBERS, encodeKey(false, [2], [[5], []]), CLAIMS), /does not have/);
  assert.throws(() => new SlabLayout(NUMBERS, encodeKey(false, [0], [[-5], []]), CLAIMS), /malformed/);
  assert.throws(() => new SlabLayout(NUMBERS, encodeKey(false, [0], [[2.5], []]), CLAIMS), /malformed/);
});
