/** `--input` arguments as tensors. */
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { flatShape, type InputSpec, nestedShape, readInputs } from '../../../src/cli/tensor-input.ts';
import { ExitError } from '../../../src/config/exit-codes.ts';
import type { Datatype } from '../../../src/tensor/datatype.ts';
import { writeNpy } from '../../../src/tensor/npy.ts';

const directory = mkdtempSync(join(tmpdir(), 'batchport-input-'));
after(() => rmSync(directory, { recursive: true }));

function spec(datatype: Datatype, shape: number[], name = 'x'): InputSpec {
  return { name, datatype, shape };
}

function read(arg: string, input: InputSpec) {
  const [tensor] = readInputs([arg], [input], directory);
  return tensor!;
}

function refusal(args: readonly string[], specs: readonly InputSpec[]): string {
  try {
    readInputs(args, specs, directory);
  } catch (error) {
    if (error instanceof ExitError && error.exit === 'USAGE') return `${error.message} | ${error.hint ?? ''}`;
    throw error;
  }
  throw new assert.AssertionError({ message: 'was accepted' });
}

test('nested JSON gives its own shape and the datatype of the model', () => {
  const tensor = read('x=[[1, 2.5, -3]]', spec('FP32', [-1, 3]));
  assert.deepEqual([tensor.datatype, tensor.shape, tensor.data], ['FP32', [1, 3], Float32Array.of(1, 2.5, -3)]);
});

test('64-bit integers in JSON keep all their digits', () => {
  const tensor = read('x=[9223372036854775807, -9007199254740993]', spec('INT64', [-1]));
  assert.deepEqual(tensor.data, BigInt64Array.of(9223372036854775807n, -9007199254740993n));
});

test('strings, booleans and the 16-bit floats are read from JSON', () => {
  assert.deepEqual(read('x=["a", "ä="]', spec('BYTES', [-1])).data, [Buffer.from('a'), Buffer.from('ä=')]);
  assert.deepEqual([...read('x=[true, false]', spec('BOOL', [-1])).data], [1, 0]);
  assert.deepEqual(read('x=[1, 0.5]', spec('FP16', [-1])).data, Uint16Array.of(0x3c00, 0x3800));
  assert.deepEqual(read('x=[1, -2]', spec('BF16', [-1])).data, Uint16Array.of(0x3f80, 0xc000));
});

test('a lone value is a scalar', () => {
  const tensor = read('x=16000', spec('INT64', []));
  assert.deepEqual([tensor.shape, tensor.data], [[], BigInt64Array.of(16000n)]);
  assert.deepEqual(read('x=-1.5', spec('FP64', [])).data, Float64Array.of(-1.5));
});

test('flat JSON takes the shape of the model where one dimension at most is open', () => {
  assert.deepEqual(flatShape([6], [2, 3]), [2, 3]);
  assert.deepEqual(flatShape([6], [-1, 3]), [2, 3]);
  assert.deepEqual(flatShape([6], [-1]), [6]);
  assert.deepEqual(flatShape([1], []), []);
  // Left for the server to refuse.
  assert.deepEqual(flatShape([7], [-1, 3]), [7]);
  assert.deepEqual(flatShape([6], [-1, -1, 2]), [6]);
  // A row for a batch of one, though both dimensions are open.
  assert.deepEqual(flatShape([6], [-1, -1]), [1, 6]);
});

test('a missing batch axis is added where the rest fits', () => {
  assert.deepEqual(read('x=[[1, 2], [3, 4]]', spec('FP32', [-1, 2, 2])).shape, [1, 2, 2]);
  assert.deepEqual(read('x=[[1, 2], [3, 4]]', spec('FP32', [-1, 2])).shape, [2, 2]);
  writeFileSync(join(directory, 'row.npy'), writeNpy('UINT8', [2, 2], Uint8Array.of(1, 2, 3, 4)));
  assert.deepEqual(read('x=row.npy', spec('UINT8', [-1, 2, 2])).shape, [1, 2, 2]);
});

test('.npy and .json files are read from the working directory', () => {
  writeFileSync(join(directory, 'a.npy'), writeNpy('INT16', [2], Uint8Array.of(1, 0, 2, 0)));
  writeFileSync(join(directory, 'a.json'), '[[1, 2],\n [3, 4]]\n');
  assert.deepEqual(read('x=a.npy', spec('INT16', [-1])).data, Int16Array.of(1, 2));
  const json = read('x=a.json', spec('INT8', [2, 2]));
  assert.deepEqual([json.shape, json.data], [[2, 2], Int8Array.of(1, 2, 3, 4)]);
});

test('with one input the name may be left out, with several it may not', () => {
  assert.deepEqual(read('[1, 2]', spec('UINT8', [-1])).data, Uint8Array.of(1, 2));
  assert.deepEqual(read('["a=b"]', spec('BYTES', [-1])).data, [Buffer.from('a=b')]);
  const two = [spec('UINT8', [-1], 'a'), spec('UINT8', [-1], 'b')];
  assert.match(refusal(['[1]'], two), /the model has 2 inputs; write NAME=… \| a, b/);
});

test('names that hold "=" or begin with another name are told apart', () => {
  const specs = [spec('UINT8', [-1], 'a'), spec('UINT8', [-1], 'a=b')];
  const [first, second] = readInputs(['a=b=[1]', 'a=[2]'], specs, directory);
  assert.deepEqual(
    [first?.name, first?.data, second?.name, second?.data],
    ['a', Uint8Array.of(2), 'a=b', Uint8Array.of(1)],
  );
});

test('inputs come in the order of the model, each exactly once', () => {
  const two = [spec('UINT8', [-1], 'a'), spec('UINT8', [-1], 'b')];
  assert.deepEqual(
    readInputs(['b=[2]', 'a=[1]'], two, directory).map(({ name }) => name),
    ['a', 'b'],
  );
  assert.match(refusal(['a=[1]'], two), /the model also needs b \(UINT8 \[-1\]\)/);
  assert.match(refusal(['a=[1]', 'a=[2]', 'b=[1]'], two), /input "a" is given twice/);
});

test('an unknown input is refused with the nearest or all names', () => {
  const two = [spec('UINT8', [-1], 'image'), spec('UINT8', [-1], 'mask')];
  assert.match(refusal(['imgae=[1]'], two), /no input "imgae" \| did you mean "image"\?/);
  assert.match(refusal(['zzz=[1]'], two), /no input "zzz" \| its inputs: image, mask/);
  assert.match(refusal(['imagf=a.npy'], [spec('UINT8', [-1], 'image')]), /no input "imagf" \| did you mean "image"/);
});

test('a file that cannot be read, or is neither .npy nor .json, is refused by name', () => {
  assert.match(refusal(['x=none.npy'], [spec('FP32', [-1])]), /cannot read none\.npy: ENOENT/);
  assert.match(refusal(['x=image.png'], [spec('FP32', [-1])]), /neither a \.npy or \.json file nor JSON/);
});

test('a .npy of another datatype is refused with the NumPy call that converts it', () => {
  writeFileSync(join(directory, 'double.npy'), writeNpy('FP64', [1], new Uint8Array(8)));
  assert.match(
    refusal(['x=double.npy'], [spec('FP32', [-1])]),
    /holds FP64, but the model takes FP32; save it with \.astype\(np\.float32\)/,
  );
});

test('ragged, malformed, out-of-range and wrong-typed JSON is refused', () => {
  const one = [spec('UINT8', [-1, -1])];
  assert.match(refusal(['x=[[1, 2], [3]]'], one), /nested array ends too early/);
  assert.match(refusal(['x=[[1, 2], 3]'], one), /--input x=/);
  assert.match(refusal(['x=[[1, 256]]'], one), /element 1 is 256, but UINT8 takes integers from 0 to 255/);
  assert.match(refusal(['x=[["a"]]'], one), /element 0 is "a"/);
  assert.match(refusal(['x=[[1, 2]'], one), /not valid JSON/);
  assert.match(refusal(['x=[1] 2'], one), /not valid JSON/);
  assert.match(refusal([`x=${'['.repeat(200)}`], one), /nested deeper|not valid JSON/);
});

test('the shape of nested JSON follows the first element of each level', () => {
  const shapes: [string, number[]][] = [
    ['1', []],
    ['[]', [0]],
    ['[[], []]', [2, 0]],
    ['[[[1],[2]],[[3],[4]],[[5],[6]]]', [3, 2, 1]],
  ];
  for (const [text, shape] of shapes) assert.deepEqual(nestedShape(Buffer.from(text)), shape, text);
});
