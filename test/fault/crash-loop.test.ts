/**
 * Fault: a device process that crashes at every start.
 *
 * Safety: it is not started again and again for ever, no start comes before its pause, and nobody is left waiting. Liveness: everything else goes on meanwhile;
 * once the fault is mended, a command brings the device back.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { ChildHook } from '../support/child-hook.ts';
import { earlyStarts, endsOf } from '../support/child-log.ts';
import { assertRefused, get, infer, json, jsonBody } from '../support/exchange.ts';
import { plusModel } from '../support/fixtures-faults.ts';
import { assertAllAtWork, assertIdle, assertNoMoreDescriptors, countDescriptors, eventually } from '../support/idle.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer, type TestServer } from '../support/server.ts';

const LIMIT_MS = 60_000;

const hook = new ChildHook({ after });
const repository = makeRepository({ after }, {});
repository.writeFile(['plus', '1', 'model.onnx'], plusModel(1));
const one = launchServer({ after }, { repository: repository.dir, env: hook.env });
const two = launchServer(
  { after },
  { repository: repository.dir, env: hook.env, args: ['--device', 'cpu', '--device', 'cpu'] },
);

before(() => Promise.all([one.ready(), two.ready()]));

const ONE = jsonBody('{"inputs":[{"name":"x","datatype":"INT32","shape":[1,1],"data":[1]}]}');

interface Child {
  readonly pid: number;
  readonly device: string | null;
  readonly state: string;
  readonly reason: string;
  readonly fruitless_lives: number;
  readonly next_start_in_s: number | null;
  readonly last_exit: { readonly how: string } | null;
}

async function deviceOf(server: TestServer, name = 'cpu'): Promise<Child> {
  const { processes } = await server.status();
  return (processes as unknown as Child[]).find(({ device }) => device === name)!;
}

function untilState(server: TestServer, state: string, name = 'cpu'): Promise<void> {
  return eventually(async () => {
    const child = await deviceOf(server, name);
    return child.state === state ? undefined : `the device is ${child.state}`;
  }, LIMIT_MS);
}

/** The log comes after the status. */
function untilEnds(count: number): Promise<void> {
  return eventually(async () => {
    const ends = endsOf(one, 'device').length;
    return ends === count ? undefined : `${ends} ends instead of ${count}`;
  });
}

test('a device that crashes at every start is given up for now, which everybody is told, and nobody waits for it', async () => {
  const descriptors = await countDescriptors(one);
  assert.equal((await infer(one.url, 'plus', ONE)).status, 200);
  hook.crashAtStart('device');
  process.kill((await deviceOf(one)).pid, 'SIGSEGV');
  await eventually(async () => ((await deviceOf(one)).fruitless_lives > 0 ? undefined : 'it has not crashed yet'));
  // Still with hope: it waits, and is answered when there is none left.
  const waiting = infer(one.url, 'plus', ONE);
  await untilState(one, 'broken');
  assertRefused(await waiting, 'NOT_READY', /given up for now: it died 5 times in a row .*SIGSEGV/);

  const child = await deviceOf(one);
  assert.equal(child.fruitless_lives, 5);
  assert.match(child.reason, /died 5 times in a row/);
  assert.match(child.last_exit!.how, /segmentation fault/);
  assert(child.next_start_in_s! > 10 && child.next_start_in_s! <= 60, `next start in ${child.next_start_in_s} s`);
  const refused = await infer(one.url, 'plus', ONE);
  assertRefused(refused, 'NOT_READY', /SIGSEGV/);
  assert.equal(refused.header('retry-after'), '1');
  assert.equal((await get(one.url, '/v2/health/live')).status, 200);
  for (const path of ['/v2/health/ready', '/v2/models/plus/ready']) {
    const answer = await get(one.url, path);
    assert.equal(answer.status, 503, path);
    assert.match(String(json(answer).error), /given up for now/, path);
  }
  assert.equal(await one.metric('batchport_process_exits_total', { role: 'device', reason: 'signal SIGSEGV' }), 6);
  await one.log(({ msg }) => msg === 'device process is given up for now');
  await untilEnds(6);
  assert.deepEqual(earlyStarts(one, 'device', 'cpu'), []);

  one.signal('SIGHUP');
  // Nothing has been mended: the same again, with all of its tries.
  await eventually(async () => (endsOf(one, 'device').length > 6 ? undefined : 'it was not tried again'), LIMIT_MS);
  await untilState(one, 'broken');
  await untilEnds(11);

  hook.mend('device');
  one.signal('SIGHUP');
  await assertAllAtWork(one, LIMIT_MS);
  assert.equal((await infer(one.url, 'plus', ONE)).status, 200);
  assert.equal((await get(one.url, '/v2/health/ready')).status, 200);
  assert.equal((await deviceOf(one)).reason, '');
  await assertIdle(one);
  await assertNoMoreDescriptors(one, descriptors);
});

test('with a second device nobody notices, and the server stays ready', async () => {
  hook.crashAtStart('device');
  process.kill((await deviceOf(two, 'cpu#2')).pid, 'SIGSEGV');
  await untilState(two, 'broken', 'cpu#2');
  for (let n = 0; n < 20; n++) assert.equal((await infer(two.url, 'plus', ONE)).status, 200);
  assert.equal((await get(two.url, '/v2/health/ready')).status, 200);
  assert.equal((await get(two.url, '/v2/models/plus/ready')).status, 200);
  const [model] = (await two.status()).models as { devices: { device: string; state: string; reason: string }[] }[];
  const lost = model!.devices.find(({ device }) => device === 'cpu#2')!;
  assert.equal(lost.state, 'waiting');
  assert.match(lost.reason, /given up for now/);

  // The other one dies too: now there is nobody left.
  process.kill((await deviceOf(two)).pid, 'SIGSEGV');
  await untilState(two, 'broken');
  assertRefused(await infer(two.url, 'plus', ONE), 'NOT_READY', /given up for now/);

  hook.mend('device');
  two.signal('SIGHUP');
  await assertAllAtWork(two, LIMIT_MS);
  assert.equal((await infer(two.url, 'plus', ONE)).status, 200);
  await assertIdle(two);
});
