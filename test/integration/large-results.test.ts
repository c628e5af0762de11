/**
 * Large tensors go through shared memory whole: megabytes in, megabytes out, many at once, bit for bit.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { assertRefused, binaryRequest, infer, jsonBody, outputsOf, send } from '../support/exchange.ts';
import { assertAllAtWork, assertIdle } from '../support/idle.ts';
import { Random } from '../support/random.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';
import { assertSameTensor, fromWire, tensor } from '../support/tensor.ts';

const MIB = 2 ** 20;
const CALLERS = 4;

const repository = makeRepository(
  { after },
  {
    dynamic: { config: { queue: { max_bytes: '384MiB' } } },
    wide: { config: { queue: { max_bytes: '128MiB' }, max_batch_size: 256 } },
  },
);
const server = launchServer({ after }, { repository: repository.dir });

before(() => server.ready());

/** One row of random FP32 bit patterns without NaN. */
function noise(seed: number, bytes: number) {
  const data = new Random(seed).bytes(bytes);
  // The exponent of no number is all ones then.
  for (let at = 3; at < bytes; at += 4) data[at]! &= 0xbf;
  return fromWire('FP32', [1, bytes / 4], data);
}

// Stories: a 1 MB result was lost when its process ended, typed arrays arrived as plain objects, 64 MB took seconds (ipc-large-message-lost-or-mangled, 27).
test('tensors of 4 bytes to 60 MiB come back bit for bit', async () => {
  for (const bytes of [4, 64 * 1024 - 4, 64 * 1024, 64 * 1024 + 4, MIB, 16 * MIB + 4, 60 * MIB]) {
    const x = bytes <= MIB ? noise(bytes, bytes) : patterned(bytes);
    const answer = await infer(server.url, 'dynamic', binaryRequest(new Map([['x', x]])));
    assertSameTensor(outputsOf(answer).get('y'), x, `${bytes} bytes`);
  }
});

/** Each element is its index, so that a piece in the wrong place shows. */
function patterned(bytes: number) {
  return tensor(
    'FP32',
    [1, bytes / 4],
    Float32Array.from({ length: bytes / 4 }, (_, n) => n),
  );
}

test('several large ones at the same time do not mix', async () => {
  await Promise.all(
    Array.from({ length: CALLERS }, async (_, caller) => {
      for (let round = 0; round < 3; round++) {
        const x = noise(100 * caller + round, 3 * MIB + 4 * caller);
        const answer = await infer(server.url, 'dynamic', binaryRequest(new Map([['x', x]])));
        assertSameTensor(outputsOf(answer).get('y'), x, `caller ${caller}, round ${round}`);
      }
    }),
  );
});

const wide = (rows: number) =>
  jsonBody(
    `{"inputs":[{"name":"x","datatype":"FP32","shape":[${rows},1],"data":[${Array.from({ length: rows }, (_, n) => n)}]}],"parameters":{"binary_data_output":true}}`,
  );

test('a few bytes that become 64 MiB come back whole; more than the queue holds is refused, and harms nobody', async () => {
  const rows = 64;
  const y = outputsOf(await infer(server.url, 'wide', wide(rows))).get('y')!;
  assert.deepEqual([...y.shape], [rows, MIB / 4]);
  const data = y.data as Float32Array;
  for (let row = 0; row < rows; row++) {
    assert.equal(data[(row * MIB) / 4], row);
    assert.equal(data[((row + 1) * MIB) / 4 - 1], row);
  }
  assertRefused(await infer(server.url, 'wide', wide(200)), 'BODY_TOO_LARGE', /queue\.max_bytes/);
  assert.equal((await infer(server.url, 'wide', wide(2))).status, 200);
});

test('a process killed right after it was given a large batch costs no answer', async () => {
  const [device] = await server.pids('device');
  const x = noise(7, 2 * MIB);
  const answers = Array.from({ length: CALLERS }, () =>
    infer(server.url, 'dynamic', binaryRequest(new Map([['x', x]]))),
  );
  process.kill(device!, 'SIGKILL');
  for (const answer of await Promise.all(answers)) {
    // 503 before it has been heard that the process is coming back, or after too many attempts; never half a tensor.
    if (answer.status === 200) assertSameTensor(outputsOf(answer).get('y'), x);
    else assert.equal(answer.status, 503, answer.body.toString('utf8', 0, 200));
  }
  await assertAllAtWork(server);
  assert.equal((await send(server.url, '/v2/models/wide/infer', wide(1))).status, 200);
  await assertIdle(server);
});
