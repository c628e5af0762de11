/**
 * The server's numbers are ONNX Runtime's own: a batch of several requests gives, bit for bit, what one run of the same rows gives in this process, with one
 * thread in both; a row alone gives the same within 1e-6. For every datatype, in JSON and in binary.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { datatypeInfo } from '../../src/tensor/datatype.ts';
import {
  type Answer,
  assertUnharmed,
  binaryRequest,
  type InferRequest,
  infer,
  inferBytes,
  jsonRequest,
  outputsOf,
  sendTogether,
} from '../support/exchange.ts';
import { type Fixture, sampleInputs } from '../support/fixture.ts';
import { arithmeticOf } from '../support/fixtures-arithmetic.ts';
import { EVERY_DATATYPE, rowsOf } from '../support/fixtures-elementwise.ts';
import { fixture } from '../support/models.ts';
import { seedFromEnv } from '../support/random.ts';
import { Oracle } from '../support/reference.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';
import { assertCloseTensor, assertSameTensors, concatRows, sliceRows, type TensorMap } from '../support/tensor.ts';

/** Rows of the three requests that make a batch. */
const REQUEST_ROWS = [1, 2, 3];
const BATCH_ROWS = 6;
const ROW_TOLERANCE = 1e-6;

const BATCHED = [
  ...EVERY_DATATYPE.flatMap((datatype) => [rowsOf(datatype), arithmeticOf(datatype)]),
  'mlp',
  'simple',
  'simple_string',
  'multitype',
  'halved',
  'empty_rows',
  'image_u8',
  'bf16_in',
];
const ALONE = ['recurrent', 'scalar', 'no_batch', 'nonzero', 'reduce_batch', 'half_to_bf16'];

const random = seedFromEnv();
const common = { queue: { max_bytes: '4MiB' }, runtime: { intra_op_threads: 1 } };
// A full batch is run at once; the delay is for those that are to meet, and is waited for only where a row is to stay alone.
const together = { ...common, max_batch_size: BATCH_ROWS, max_queue_delay_us: 1_000_000 };
const server = launchServer(
  { after },
  {
    repository: makeRepository(
      { after },
      Object.fromEntries([
        ...BATCHED.map((name) => [name, { config: together }]),
        ...ALONE.map((name) => [name, { config: common }]),
      ]),
    ).dir,
  },
);

before(() => server.ready());

function hasJsonForm(specs: Fixture['inputs']): boolean {
  return specs.every(({ datatype }) => datatypeInfo(datatype).json);
}

/** The forms that a fixture's tensors have: input in JSON or binary, output in JSON or binary. */
function requestsFor({ inputs, outputs }: Fixture): ((values: TensorMap) => InferRequest)[] {
  const binary = { parameters: { binary_data_output: true } };
  const text = { parameters: { binary_data_output: false } };
  const forms = [(values: TensorMap) => binaryRequest(values)];
  if (hasJsonForm(outputs)) forms.push((values) => binaryRequest(values, text));
  if (hasJsonForm(inputs)) forms.push((values) => jsonRequest(values, binary));
  if (hasJsonForm(inputs) && hasJsonForm(outputs)) forms.push((values) => jsonRequest(values));
  return forms;
}

function sliceAll(inputs: TensorMap, from: number, to: number): TensorMap {
  return new Map([...inputs].map(([name, value]) => [name, sliceRows(value, from, to)]));
}

function joinOutputs(answers: readonly Answer[]): TensorMap {
  const parts = answers.map(outputsOf);
  return new Map([...parts[0]!.keys()].map((name) => [name, concatRows(parts.map((part) => part.get(name)!))]));
}

/** Batches and rows that a model has run. */
async function executions(model: string): Promise<{ batches: number; rows: number }> {
  const { models } = (await server.status()) as unknown as {
    models: { name: string; batches: number; rows: number }[];
  };
  const { batches, rows } = models.find(({ name }) => name === model)!;
  return { batches, rows };
}

// Shared memory that the runtime refuses, or a tensor laid over the wrong bytes, gives other numbers than a call in the process (case 5).
for (const name of BATCHED) {
  test(`a batch of ${name} gives the bits of one run of its rows`, async (t) => {
    const forms = requestsFor(fixture(name));
    const oracle = Oracle.of(t, name);
    const earlier = await executions(name);
    // Each batch mixes the forms; over all of them, each request has had each form.
    for (const first of forms.keys()) {
      const rows = sampleInputs(fixture(name), random, BATCH_ROWS);
      let from = 0;
      const requests = REQUEST_ROWS.map((count, n) => {
        const values = sliceAll(rows, from, from + count);
        from += count;
        return inferBytes(name, forms[(first + n) % forms.length]!(values));
      });
      assertSameTensors(joinOutputs(await sendTogether(server.url, requests)), oracle.run(rows));
    }
    const { batches, rows } = await executions(name);
    assert.equal(batches - earlier.batches, forms.length, 'batches');
    assert.equal(rows - earlier.rows, forms.length * BATCH_ROWS, 'rows');
  });
}

test('a row alone gives what it gives in a batch', async (t) => {
  // All at once: each waits for others that do not come.
  await Promise.all(
    BATCHED.map(async (name) => {
      const rows = sampleInputs(fixture(name), random, BATCH_ROWS);
      const expected = Oracle.of(t, name).run(rows);
      const outputs = outputsOf(await infer(server.url, name, binaryRequest(sliceAll(rows, 2, 3))));
      for (const [output, value] of expected) {
        assertCloseTensor(outputs.get(output), sliceRows(value, 2, 3), ROW_TOLERANCE, `${output} of ${name}`, 0);
      }
    }),
  );
});

for (const name of ALONE) {
  test(`a request of ${name}, which is not batched, gives the bits of its own run`, async (t) => {
    const oracle = Oracle.of(t, name);
    for (const [n, form] of requestsFor(fixture(name)).entries()) {
      const inputs = sampleInputs(fixture(name), random, n + 1);
      assertSameTensors(outputsOf(await infer(server.url, name, form(inputs))), oracle.run(inputs));
    }
  });
}

test('no process of the server died on the way', () => assertUnharmed(server));
