/**
 * What is logged, changed while the server runs (the protocol's logging extension): in every process, over both protocols, and still so when a process is replaced.
 */
import assert from 'node:assert/strict';
import { after, afterEach, before, test } from 'node:test';
import { assertRefused, get, infer, json, jsonBody, send } from '../support/exchange.ts';
import { assertCallRefused, type GrpcClient, GrpcClients } from '../support/grpc.ts';
import { assertAllAtWork, eventually } from '../support/idle.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';

const AS_STARTED = {
  log_file: '',
  log_info: true,
  log_warning: true,
  log_error: true,
  log_verbose_level: 0,
  log_format: 'ISO8601',
};

const repository = makeRepository({ after }, ['rows']);
const server = launchServer({ after }, { grpc: true, repository: repository.dir, args: ['--ingress', '2'] });
const clients = new GrpcClients({ after }, server);
let client: GrpcClient;

before(async () => {
  await server.ready();
  client = clients.open();
});

const change = (settings: object) => send(server.url, '/v2/logging', jsonBody(JSON.stringify(settings)));
const settings = async () => json(await get(server.url, '/v2/logging'));

afterEach(() => change(AS_STARTED));

/** Others are at work in their place; a death is noticed only some time after it. */
async function untilReplaced(role: string, killed: readonly number[]): Promise<void> {
  await eventually(async () => {
    const pids = await server.pids(role);
    return pids.some((pid) => killed.includes(pid)) ? `${killed} are still there` : undefined;
  });
  await assertAllAtWork(server);
}

/** A request that is refused, which is told in lines of level debug. */
async function refusedRequest(id: string): Promise<void> {
  const answer = await infer(
    server.url,
    'rows',
    jsonBody(
      `{"id":"${id}","inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}],"outputs":[{"name":"y"}],"parameters":{"priority":-1}}`,
    ),
  );
  assert.equal(answer.status, 400);
}

test('settings start from --log-level, and are told with what was changed', async () => {
  assert.deepEqual(await settings(), AS_STARTED);
  const changed = json(await change({ log_verbose_level: 1, log_info: false }));
  assert.deepEqual(changed, { ...AS_STARTED, log_verbose_level: 1, log_info: false });
  // Connections spread over the ingress processes.
  for (let n = 0; n < 8; n++) assert.deepEqual(await settings(), changed);
  assert.deepEqual(json(await change({ log_info: null, log_verbose_level: 99 })), { ...changed, log_verbose_level: 2 });
  assert((json(await get(server.url, '/v2')).extensions as string[]).includes('logging'));
});

test('what is on is logged by every process, and by those that come after them', async () => {
  await refusedRequest('unseen');
  await change({ log_verbose_level: 1 });
  for (let n = 0; n < 8; n++) await refusedRequest(`seen-${n}`);
  const isAbout = (line: Record<string, unknown>) => line.level === 'debug' && line.role === 'ingress';
  await server.log((line) => isAbout(line) && line.msg === 'request not answered with a result');
  const killed = await server.pids('ingress');
  for (const pid of killed) process.kill(pid, 'SIGKILL');
  await untilReplaced('ingress', killed);
  const pids = new Set(await server.pids('ingress'));
  await refusedRequest('later');
  await server.log((line) => isAbout(line) && pids.has(line.pid as number));
});

test('levels are on and off one by one', async () => {
  await change({ log_info: false, log_verbose_level: 1 });
  const [device] = await server.pids('device');
  process.kill(device!, 'SIGKILL');
  await untilReplaced('device', [device!]);
  // The start of a device is info, its death a warning or an error.
  await server.log((line) => line.level !== 'info' && line.childPid === device);
  const [next] = await server.pids('device');
  await change(AS_STARTED);
  const told = server.logs.filter((line) => line.msg === 'device process started' && line.childPid === next);
  assert.deepEqual(told, []);
});

test('the same over gRPC', async () => {
  const values = ({ settings: all }: { settings: Record<string, Record<string, unknown>> }) =>
    Object.fromEntries(
      Object.entries(all).map(([key, value]) => [key, value[String(value.parameter_choice)] ?? value]),
    );
  const { settings: now } = await client.call('LogSettings');
  assert.deepEqual(
    [now.log_info.bool_param, now.log_verbose_level.uint32_param, now.log_format.string_param],
    [true, 0, 'ISO8601'],
  );
  const changed = await client.call('LogSettings', {
    settings: { log_info: { bool_param: false }, log_verbose_level: { uint32_param: 2 }, log_error: {} },
  });
  assert.equal(Object.keys(values(changed as never)).length, 6);
  assert.deepEqual(await settings(), { ...AS_STARTED, log_info: false, log_verbose_level: 2 });
  await assertCallRefused(
    client.call('LogSettings', { settings: { log_file: { string_param: '/tmp/x' } } }),
    'BAD_REQUEST',
    /cannot be updated/,
  );
});

test('what cannot be changed is refused, and nothing of it is', async () => {
  for (const [body, message] of [
    ['{"log_info":1}', /'log_info' must be true or false/],
    ['{"log_error":false,"log_verbose_level":-1}', /integer of 0 or more/],
    ['{"log_verbose_level":"1"}', /integer of 0 or more/],
    ['{"log_file":"/tmp/x"}', /cannot be updated/],
    ['{"log_format":"default"}', /always ISO8601/],
    ['{"log_warnings":true}', /no log setting of that name; there are: log_file, log_info/],
    ['{"__proto__":true}', /no log setting/],
    ['[]', /must be a JSON object/],
    ['', /not valid JSON/],
  ] as const) {
    assertRefused(await send(server.url, '/v2/logging', jsonBody(body)), 'BAD_REQUEST', message);
  }
  assert.deepEqual(await settings(), AS_STARTED);
});
