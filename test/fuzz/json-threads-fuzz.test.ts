/**
 * Mutated requests, small ones and large ones, read at once and in a thread: the same request comes out of both, or the same refusal word for word.
 *
 * Bounded by `ROUNDS`; FUZZ_SECONDS runs for that long instead. TEST_SEED repeats a run.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { BatchportError } from '../../src/config/errors.ts';
import { createLogger } from '../../src/config/log.ts';
import { BodyBudget } from '../../src/ingress/body.ts';
import { JsonThreads, LARGE_JSON_BYTES } from '../../src/ingress/json-threads.ts';
import type { BoundRequest } from '../../src/protocol/bound-request.ts';
import { type ModelInterface, RequestDecoder } from '../../src/protocol/request-decoder.ts';
import { MODELS, mutate, type Sample, sample } from '../support/fuzz-requests.ts';
import { type Random, seedFromEnv } from '../support/random.ts';
import { LIMITS } from '../unit/protocol/fixtures.ts';

const ROUNDS = 1500;
/** One in so many is large enough to be read in a thread, for its size. */
const LARGE_EVERY = 60;
const LARGE_SCALE = 20_000;
const MIB = 2 ** 20;

const jsonLength = ({ body, headerLength }: Sample): number => headerLength ?? body.length;

/** A request, as it is or mutated; a large one is drawn again until its JSON is large. */
function request(random: Random, target: ModelInterface, large: boolean): Sample {
  for (;;) {
    const valid = sample(random, target, large ? LARGE_SCALE : 1);
    const drawn = random.chance(0.25) ? valid : mutate(random, valid);
    if (!large || jsonLength(drawn) >= LARGE_JSON_BYTES) return drawn;
  }
}

async function settled(work: () => BoundRequest | Promise<BoundRequest>) {
  try {
    const { inputs, ...rest } = await work();
    return { ...rest, inputs: inputs.map((data) => Buffer.from(data)) };
  } catch (error) {
    if (error instanceof BatchportError && error.httpStatus === 400) return `${error.code}: ${error.message}`;
    throw error;
  }
}

test('mutated requests come to the same in a thread as at once', async () => {
  const random = seedFromEnv();
  const seconds = Number(process.env.FUZZ_SECONDS ?? 0);
  const until = performance.now() + 1000 * seconds;
  const budget = new BodyBudget(512 * MIB, 64 * MIB);
  const entry = new URL('../../workers/json.js', import.meta.url);
  const threads = new JsonThreads({ entry, threads: 1, budget, log: createLogger('test', 'fatal') });
  const rigs = MODELS.map((target) => ({ target, decoder: new RequestDecoder(target, LIMITS) }));
  const scalable = rigs.filter(({ target }) => !target.batching && target.signature.inputs.length === 1);
  assert(scalable.length > 0);
  const counts = { bound: 0, refused: 0, large: 0 };
  for (let round = 0; seconds > 0 ? performance.now() < until : round < ROUNDS; round++) {
    const large = round % LARGE_EVERY === 0;
    const { target, decoder } = random.pick(large ? scalable : rigs);
    const { body, headerLength } = request(random, target, large);
    // A body without JSON is never read in a thread.
    if (headerLength === 0) continue;
    const atOnce = await settled(() => new RequestDecoder(target, LIMITS).decode(Buffer.from(body), headerLength));
    const cut = random.int(0, body.length);
    const pieces = [Buffer.from(body.subarray(0, cut)), Buffer.from(body.subarray(cut))];
    const inThread = await settled(() =>
      threads.read(decoder, { pieces, length: body.length, headerLength }, () => true),
    );
    if (typeof atOnce === 'string') counts.refused++;
    else counts.bound++;
    if (large) counts.large++;
    try {
      assert.deepEqual(inThread, atOnce);
    } catch (error) {
      console.log(`model ${target.name}, header ${headerLength}, body ${body.subarray(0, 10_000).toString('base64')}`);
      throw error;
    }
  }
  console.log(JSON.stringify(counts));
  assert(counts.bound * 20 > counts.refused && counts.refused * 20 > counts.bound && counts.large > 0);
});
