/**
 * What a load does to a server with two devices: the new one takes over on both at once, a slow request is waited for as long as a drain may take and never lost, and
 * what is wrong with one version does not touch another.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { assertDone, ControlledServer, TEN } from '../support/control.ts';
import { assertRefused, inferBytes } from '../support/exchange.ts';
import { fatalModel, plusModel } from '../support/fixtures-faults.ts';
import { assertIdle, eventually, modelsOf } from '../support/idle.ts';
import { RawConnection } from '../support/raw.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';

const repository = makeRepository({ after }, {});
repository.writeFile(['plus', '1', 'model.onnx'], plusModel(1));
for (const version of ['1', '2']) repository.writeFile(['both', version, 'model.onnx'], plusModel(Number(version)));
repository.writeConfig('both', { version_policy: 'all' });
const args = ['--model-control-mode', 'explicit', '--load-model', '*', '--device', 'cpu', '--device', 'cpu'];
const server = launchServer({ after }, { repository: repository.dir, args: [...args, '--drain-timeout-s', '1'] });
const control = new ControlledServer(server, repository);

before(async () => {
  await server.ready();
});

/** Waits until a request to the model is under way, its head being read. */
async function untilInFlight(model: string): Promise<void> {
  await eventually(async () => {
    const count = await server.metric('batchport_requests_in_flight', { model });
    return count === 1 ? undefined : `${count} requests are under way`;
  });
}

test('a new file takes over when every device has loaded it', async () => {
  control.replaceFile('plus', '1', plusModel(2));
  assertDone(await control.load('plus'));
  assert.equal(await control.valueOfTen('plus'), 12);
  const devices = modelsOf(await server.status()).find(({ name }) => name === 'plus')!.devices;
  assert.deepEqual(
    devices.map(({ state }) => state),
    ['serving', 'serving'],
  );
});

test('a file that kills whoever loads it leaves what served serving', async (t) => {
  if (process.arch !== 'x64') {
    t.skip('the fault is one of x64');
    return;
  }
  control.replaceFile('both', '2', fatalModel());
  assertRefused(await control.load('both'), 'BAD_REQUEST', /version 2: the device process died/);
  assert.equal(await control.valueOfTen('both', '1'), 11);
  assert.equal(await control.valueOfTen('both', '2'), 12);
  control.replaceFile('both', '2', plusModel(2));
  assertDone(await control.load('both'));
});

test('a version whose file is no model any more goes on as it was, beside one that is replaced', async () => {
  control.replaceFile('both', '1', plusModel(5));
  control.replaceFile('both', '2', Buffer.from('<html>404'));
  assertRefused(await control.load('both'), 'BAD_REQUEST', /version 2: .*HTML/);
  assert.equal(await control.valueOfTen('both', '1'), 15);
  assert.equal(await control.valueOfTen('both', '2'), 12);
  const reasons = (await control.indexOf('both')).map(({ version, state, reason }) => [version, state, reason !== '']);
  assert.deepEqual(reasons.sort(), [
    ['1', 'READY', false],
    ['2', 'READY', true],
  ]);
  control.replaceFile('both', '2', plusModel(6));
  assertDone(await control.load('both'));
  assert.equal(await control.valueOfTen('both', '2'), 16);
});

test('a new model that cannot be served is listed with its reason', async () => {
  repository.writeFile(['broken', '1', 'model.onnx'], '{"error": "no such file"}');
  assertRefused(await control.load('broken'), 'BAD_REQUEST', /JSON text/);
  const [entry] = await control.indexOf('broken');
  assert.equal(entry!.state, 'UNAVAILABLE');
  assert.match(entry!.reason, /JSON text/);
  assertRefused(await control.ask('broken'), 'NOT_READY', /JSON text/);
  control.replaceFile('broken', '1', plusModel(1));
  assertDone(await control.load('broken'));
  assert.equal(await control.valueOfTen('broken'), 11);
});

test('a request whose body comes slowly is answered by the one that it came for', async (t) => {
  const connection = await RawConnection.open(server.url);
  t.after(() => connection.destroy());
  const bytes = inferBytes('plus', TEN);
  await connection.write(bytes.subarray(0, bytes.length - 10));
  await untilInFlight('plus');
  control.replaceFile('plus', '1', plusModel(3));
  const loading = control.load('plus');
  while ((await control.valueOfTen('plus')) !== 13);
  await connection.write(bytes.subarray(bytes.length - 10));
  const { status, body } = await connection.response();
  assert.equal(status, 200);
  assert.equal(JSON.parse(body.toString()).outputs[0].data[0], 12);
  assertDone(await loading);
});

// Story: a body that came after the time for a drain was put into a queue that nobody looked at any more, and its client waited for ever.
test('one whose body comes later than that is refused, and not lost', async (t) => {
  const connection = await RawConnection.open(server.url);
  t.after(() => connection.destroy());
  const bytes = inferBytes('plus', TEN);
  await connection.write(bytes.subarray(0, bytes.length - 10));
  await untilInFlight('plus');
  control.replaceFile('plus', '1', plusModel(4));
  assertDone(await control.load('plus'));
  assert.equal(await control.valueOfTen('plus'), 14);
  await connection.write(bytes.subarray(bytes.length - 10));
  const { status } = await connection.response();
  assert.equal(status, 503);
  await assertIdle(server);
});
