/**
 * Starting: what cannot work is told before anything has been started, in a line that says what to do, and nothing is left behind; addresses of every kind are
 * served.
 */
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import fs from 'node:fs';
import http from 'node:http';
import net from 'node:net';
import path from 'node:path';
import { after, describe, type TestContext, test } from 'node:test';
import { type ExitError, exitCode } from '../../src/config/exit-codes.ts';
import type { ServerSettings } from '../../src/config/settings.ts';
import { resolveSettings } from '../../src/config/settings-resolve.ts';
import { canLoadLibrary } from '../../src/runtime/library.ts';
import { openListeners, readDevices } from '../../src/supervisor/preparation.ts';
import { assertRefused, get, infer, json, jsonBody } from '../support/exchange.ts';
import { unusedUrl } from '../support/http-server.ts';
import { assertAllAtWork } from '../support/idle.ts';
import { addressOf } from '../support/raw.ts';
import { makeRepository, temporaryDirectory } from '../support/repository.ts';
import { launchServer, PROJECT_DIR, type ServerOptions, startServer, type TestServer } from '../support/server.ts';
import { missingForWebGpu, SOFTWARE_DRIVER } from '../support/webgpu.ts';
import { whyUnusable, wrapped } from '../support/wrapped.ts';

const END_LIMIT_MS = 30_000;
const ROWS = jsonBody('{"inputs":[{"name":"x","datatype":"FP32","shape":[1,4],"data":[1,2,3,4]}]}');
const CPU_ONLY = { CUDA_VISIBLE_DEVICES: undefined, BATCHPORT_ONNXRUNTIME_DIR: undefined };

const repository = makeRepository({ after }, ['rows']);

/** Starts a server that must not come up. Later flags win over those that the helper puts in front. */
async function failedStart(
  t: TestContext,
  args: readonly string[],
  dir = repository.dir,
  { env = {}, program }: Pick<ServerOptions, 'env' | 'program'> = {},
) {
  const options = program === undefined ? {} : { program };
  const server = launchServer(t, { repository: dir, args, env: { ...CPU_ONLY, ...env }, ...options });
  const { code, signal } = await server.ended(END_LIMIT_MS);
  assert.equal(signal, null);
  assert.deepEqual(server.output, [], 'nothing may be said to be ready');
  const lines = server.logs.flatMap(({ text }) => (typeof text === 'string' ? [text] : []));
  const from = lines.findIndex((line) => line.startsWith('error: '));
  assert(from >= 0, `no error among ${JSON.stringify(lines)}`);
  return { code, lines: lines.slice(from) };
}

/** A port that somebody else listens on. */
async function occupied(t: TestContext): Promise<number> {
  const server = net.createServer().listen(0, '127.0.0.1');
  await new Promise((resolve) => server.once('listening', resolve));
  t.after(() => new Promise((resolve) => server.close(resolve)));
  return (server.address() as net.AddressInfo).port;
}

async function freePort(): Promise<number> {
  return addressOf(await unusedUrl()).port;
}

/** What the start itself does first, with the default settings and these. */
function settingsWith(flags: Readonly<Record<string, unknown>>): ServerSettings {
  return resolveSettings({
    flags: { modelRepository: repository.dir, grpcPort: 'none', ...flags },
    env: {},
    cwd: PROJECT_DIR,
  }).settings;
}

// Stories: silent exit, only the first of several conflicts told, IPv6 not bound (port-in-use-and-ipv6, 77).
describe('addresses that cannot be had', { concurrency: true }, () => {
  test('each port in use has a line with its purpose and number, all of them at once', async (t) => {
    const [httpPort, grpcPort, metricsPort] = [await occupied(t), await occupied(t), await occupied(t)];
    const { code, lines } = await failedStart(t, [
      '--http-port',
      String(httpPort),
      '--grpc-port',
      String(grpcPort),
      '--metrics-port',
      String(metricsPort),
    ]);
    assert.equal(code, exitCode('ADDRESS'));
    assert.equal(lines.length, 4, lines.join('\n'));
    assert.match(
      lines[0]!,
      new RegExp(`Cannot listen for HTTP on 127\\.0\\.0\\.1 port ${httpPort}: .*in use.*EADDRINUSE`),
    );
    assert.match(lines[1]!, new RegExp(`Cannot listen for gRPC on 127\\.0\\.0\\.1 port ${grpcPort}: .*EADDRINUSE`));
    assert.match(
      lines[2]!,
      new RegExp(`Cannot listen for metrics on 127\\.0\\.0\\.1 port ${metricsPort}: .*in use.*EADDRINUSE`),
    );
    assert.match(lines[3]!, /--http-port and --grpc-port and --metrics-port/);
  });

  test('a single conflict is told alone, and the other port is free again', async (t) => {
    const port = await occupied(t);
    const metricsPort = await freePort();
    const settings = settingsWith({ httpPort: port, metricsPort });
    await assert.rejects(openListeners(settings), (error: ExitError) => {
      assert.equal(error.exit, 'ADDRESS');
      assert.match(error.message, new RegExp(`^Cannot listen for HTTP on 127\\.0\\.0\\.1 port ${port}: [^\\n]*$`));
      return true;
    });
    const { http, metrics } = await openListeners(settingsWith({ httpPort: 0, metricsPort }));
    http.close();
    metrics.close();
  });

  test('an address of another machine, a name that is none and a path that cannot be are told', async () => {
    for (const [host, what] of [
      [
        '192.0.2.1',
        /^Cannot listen for HTTP on 192\.0\.2\.1 port 0: this machine does not have that address \(EADDRNOTAVAIL\)\.$/m,
      ],
      ['no-such-host.invalid', /no-such-host\.invalid.*(ENOTFOUND|EAI_AGAIN)/],
      [
        'unix:/no/such/folder/socket',
        /^Cannot listen for HTTP on unix:\/no\/such\/folder\/socket: open: ENOENT \([a-z ]*\)\.$/,
      ],
      [`unix:/${'a'.repeat(200)}`, /ENAMETOOLONG/],
    ] as const) {
      await assert.rejects(openListeners(settingsWith({ host, httpPort: 0, metricsPort: 0 })), (error: ExitError) => {
        assert.equal(error.exit, 'ADDRESS');
        assert.match(error.message, what);
        assert.match(String(error.hint), /--host/);
        return true;
      });
    }
  });
});

function statusOverUnix(file: string): Promise<number> {
  return new Promise((resolve, reject) => {
    http
      .get({ socketPath: file, path: '/v2/health/ready' }, (response) => resolve(response.resume().statusCode!))
      .once('error', reject);
  });
}

async function assertServesAt(server: TestServer, host: string): Promise<void> {
  for (const url of [server.url, server.metricsUrl]) assert.equal(addressOf(url).host, host, url);
  assert.equal((await get(server.url, '/v2/health/live')).status, 200);
  assert.equal((await infer(server.url, 'rows', ROWS)).status, 200);
}

const hasIpv6 = fs.existsSync('/proc/net/if_inet6') && fs.readFileSync('/proc/net/if_inet6', 'utf8') !== '';
const withoutIpv6 = hasIpv6 ? false : 'this machine has no IPv6';

describe('addresses', { concurrency: true }, () => {
  test('an IPv6 address is served, and the ready line has URLs that can be used', { skip: withoutIpv6 }, async (t) => {
    const server = await startServer(t, { repository: repository.dir, args: ['--host', '::1'] });
    await assertServesAt(server, '::1');
  });

  test(':: serves IPv4 as well; brackets are understood', { skip: withoutIpv6 }, async (t) => {
    const server = await startServer(t, { repository: repository.dir, args: ['--host', '[::]'] });
    const { port } = addressOf(server.url);
    for (const host of ['127.0.0.1', '[::1]']) {
      assert.equal((await get(`http://${host}:${port}`, '/v2/health/live')).status, 200, host);
    }
  });

  test('a Unix socket is served, is not taken from a live server, and is taken over from a killed one', async (t) => {
    const file = path.join(temporaryDirectory(t, 'socket'), 'socket');
    const args = ['--host', `unix:${file}`];
    const first = await startServer(t, { repository: repository.dir, args });
    assert.equal(first.url, `unix:${file}`);
    assert.equal(await statusOverUnix(file), 200);
    const { code, lines } = await failedStart(t, args);
    assert.equal(code, exitCode('ADDRESS'));
    assert.match(lines[0]!, /EADDRINUSE/);
    assert.equal(await statusOverUnix(file), 200);
    await first.kill();
    assert(fs.existsSync(file));
    const second = await startServer(t, { repository: repository.dir, args });
    assert.equal(await statusOverUnix(file), 200);
    await second.stop();
    assert.equal(fs.existsSync(file), false, 'the file of the socket is removed');
  });
});

// Story: asked for a GPU, a server ran on the CPU and said nothing (device-name-falls-back-silently, 28).
describe('devices', { concurrency: true }, () => {
  const noGpu = !fs.existsSync('/dev/nvidiactl');

  test('a name that is no device is told with those that are, before anything starts', async (t) => {
    for (const [name, hint] of [
      ['CUDA', /Did you mean cuda\?/],
      ['gpu', /Did you mean cuda\?/],
      ['cpu:', /not a device/],
      ['cuda:x', /a number from 0/],
      ['cpu,cuda', /Devices are cpu, /],
    ] as const) {
      assert.throws(
        () => readDevices(['cpu', name]),
        (error: ExitError) => {
          assert.equal(error.exit, 'DEVICE');
          assert(error.message.includes(JSON.stringify(name)), error.message);
          assert.match(error.message, hint);
          return true;
        },
      );
    }
    const { code, lines } = await failedStart(t, ['--device', 'nope']);
    assert.equal(code, exitCode('DEVICE'));
    assert.match(lines[0]!, /"nope" is not a device.*Devices are cpu, /);
  });

  test('a device that is not there fails the start, naming it, what is missing and how to get it', {
    skip: noGpu ? false : 'this machine has a GPU',
  }, async (t) => {
    // Also beside one that is there: no silent fall back to it.
    for (const [name, full] of [
      ['cuda:7', 'cuda:7'],
      ['tensorrt', 'tensorrt:0'],
    ] as const) {
      const { code, lines } = await failedStart(t, ['--device', 'cpu', '--device', name]);
      assert.equal(code, exitCode('DEVICE'), name);
      assert(lines[0]!.includes(`Device ${full} is not available`), lines[0]);
      assert.match(lines[0]!, /libonnxruntime_providers_cuda\.so.*BATCHPORT_ONNXRUNTIME_DIR.*NVIDIA driver/);
    }
  });

  // A driver's manifest is there, as on many machines without a GPU: nothing was noticed before the first model was loaded.
  test('a WebGPU device that finds no adapter fails the start, naming it, the drivers there are and how to get another', async (t) => {
    const manifest = path.join(temporaryDirectory(t, 'vulkan'), 'none.json');
    const icd = { library_path: path.join(path.dirname(manifest), 'none.so'), api_version: '1.3.0' };
    fs.writeFileSync(manifest, JSON.stringify({ file_format_version: '1.0.0', ICD: icd }));
    const args = ['--device', 'cpu', '--device', 'webgpu'];
    const { code, lines } = await failedStart(t, args, repository.dir, { env: { VK_DRIVER_FILES: manifest } });
    assert.equal(code, exitCode('DEVICE'));
    if (!canLoadLibrary('libvulkan.so.1')) {
      assert.match(lines[0]!, /Device webgpu:0 is not available.*package libvulkan1/);
      return;
    }
    assert(
      lines[0]!.includes(
        `Device webgpu:0 is not available. No Vulkan driver finds a GPU that can be used (${manifest})`,
      ),
    );
    assert.match(lines[0]!, /VK_DRIVER_FILES.*ONNX Runtime says: Failed to get a WebGPU adapter/);
  });

  const noVulkan = missingForWebGpu();
  test('a WebGPU device on a software driver starts, and serves', { skip: noVulkan ?? false }, async (t) => {
    const env = { VK_DRIVER_FILES: SOFTWARE_DRIVER };
    const server = await startServer(t, { repository: repository.dir, args: ['--device', 'webgpu'], env });
    const answer = json(await infer(server.url, 'rows', ROWS)) as { outputs: [{ data: number[] }] };
    assert.deepEqual(answer.outputs[0].data, [1, 2, 3, 4]);
    const { parameters } = json(await get(server.url, '/v2/models/rows')) as { parameters: { devices: string } };
    assert.equal(parameters.devices, 'webgpu:0');
  });

  test('the device in effect is told in metadata, status and metrics, and no model is served by another one than it asks for', async (t) => {
    const models = makeRepository(t, { rows: {}, on_gpu: { fixture: 'rows', config: { devices: ['cuda:0'] } } });
    const server = await startServer(t, { repository: models.dir, args: ['--device', 'cpu:0', '--device', 'cpu:0'] });
    const { parameters } = json(await get(server.url, '/v2/models/rows')) as { parameters: { devices: string } };
    assert.equal(parameters.devices, 'cpu:0,cpu:0#2');
    const { processes } = await server.status();
    const devices = processes.filter(({ role }) => role === 'device');
    assert.deepEqual(
      devices.map(({ device }) => device),
      ['cpu:0', 'cpu:0#2'],
    );
    await assertAllAtWork(server);
    for (const { pid, device } of devices) {
      assert.match(fs.readFileSync(`/proc/${pid}/status`, 'utf8'), /^Cpus_allowed_list:\t0$/m);
      assert.equal(await server.metric('batchport_process_up', { device: String(device) }), 1);
    }
    assert.equal((await infer(server.url, 'rows', ROWS)).status, 200);
    assertRefused(await infer(server.url, 'on_gpu', ROWS), 'NOT_READY', /asks for the device cuda:0/);
    const { reason } = await server.log(({ model }) => model === 'on_gpu');
    assert.match(String(reason), /asks for the device cuda:0.*--device cuda:0/);
  });
});

// Story: `ulimit -n 64` ended in a stack of node's own, from the loading of modules.
test('too few open files fail the start with what to raise, whether the code can be loaded or not', async (t) => {
  for (const [limit, message] of [
    // Node 24 has no more than a few modules open at a time.
    [64, /may not open enough files to load its own code.*ulimit -n|may have 64 files open/],
    [200, /may have 200 files open, but at least 259 are needed/],
  ] as const) {
    const program = wrapped(t, ['sh', '-c', `ulimit -n ${limit} && exec "$@"`, 'sh']);
    const { code, lines } = await failedStart(t, [], repository.dir, { program });
    assert.equal(code, exitCode('FAILURE'));
    assert.match(lines[0]!, message);
    if (limit === 200) assert.match(lines[1]!, /ulimit -n 65536.*LimitNOFILE=/);
  }
});

// Story: a queue larger than the container's /dev/shm died by SIGBUS at its first use (dev-shm-too-small, 22).
describe('shared memory', { concurrency: true }, () => {
  test('queues larger than the memory there is fail the start, naming needed and available bytes', async (t) => {
    const models = makeRepository(t, { rows: { config: { queue: { max_bytes: '1TiB' } } } });
    const { code, lines } = await failedStart(t, [], models.dir);
    assert.equal(code, exitCode('CONFIG'));
    assert.match(lines[0]!, /may take 1TiB of shared memory, but only \d[\d.]*[KMGT]?i?B are available \(\//);
    assert.match(lines[1]!, /queue\.max_bytes/);
  });

  test('a /dev/shm of 64 KiB is of no importance: a queue of 8 MiB is filled', async (t) => {
    const small = 'mount -t tmpfs -o size=64k tmpfs /dev/shm';
    const reason = whyUnusable(['unshare', '-m', 'sh', '-c', small]);
    if (reason !== undefined) {
      t.skip(`no mount of its own for the test: ${reason}`);
      return;
    }
    const program = wrapped(t, ['unshare', '-m', 'sh', '-c', `${small} && exec "$@"`, 'sh']);
    const models = makeRepository(t, { dynamic: { config: { queue: { max_bytes: '8MiB' } } } });
    const server = await startServer(t, { repository: models.dir, program });
    const pid = (await server.pids('device'))[0]!;
    assert.match(fs.readFileSync(`/proc/${pid}/mountinfo`, 'utf8'), / \/dev\/shm .*size=64k/);
    const count = 2 ** 18;
    const values = Array.from({ length: count }, (_, n) => n);
    const body = `{"inputs":[{"name":"x","datatype":"FP32","shape":[1,${count}],"data":[${values.join()}]}]}`;
    const answer = await infer(server.url, 'dynamic', jsonBody(body));
    assert.equal(answer.status, 200);
    assert(answer.body.includes(`,${count - 1}]`));
  });
});

// Story: ONNX Runtime saw the host's cores and not those of the container, and started a thread for each (thread-count-in-containers, 64).
test('devices confined to one core run a model with one thread each, unless they are told otherwise', async (t) => {
  const confined = ['taskset', '-c', '0'];
  const reason = whyUnusable([...confined, 'true']);
  if (reason !== undefined) {
    t.skip(reason);
    return;
  }
  const models = makeRepository(t, {
    mlp: { config: { devices: ['cpu'] } },
    mlp_more: { fixture: 'mlp', config: { devices: ['cpu:0'], runtime: { intra_op_threads: 4 } } },
  });
  const args = ['--device', 'cpu', '--device', 'cpu', '--device', 'cpu:0'];
  const server = await startServer(t, { repository: models.dir, args, program: wrapped(t, confined) });
  await assertAllAtWork(server);
  const pids = await server.pids('device');
  const statuses = pids.map((pid) => fs.readFileSync(`/proc/${pid}/status`, 'utf8'));
  for (const status of statuses) assert.match(status, /^Cpus_allowed_list:\t0$/m);
  const [first, second, told] = statuses.map((status) => Number(/^Threads:\t(\d+)$/m.exec(status)![1]));
  assert.deepEqual([second, told], [first, first! + 3]);
  assert.deepEqual(
    server.logs.filter((line) => /affinity/i.test(JSON.stringify(line))),
    [],
    'ONNX Runtime complains about cores',
  );
});

// Story: an installation died since a dependency downloaded CUDA libraries behind npm's back (install-without-network, 78).
test('the installation fetches nothing but packages of the registry, and no dependency runs a script of its own', () => {
  const read = (name: string) => fs.readFileSync(path.join(PROJECT_DIR, name), 'utf8');
  const { packages } = JSON.parse(read('package-lock.json')) as {
    packages: Record<string, { resolved?: string; integrity?: string; hasInstallScript?: boolean }>;
  };
  const { allowScripts } = JSON.parse(read('package.json')) as { allowScripts: Record<string, boolean> };
  for (const [place, { resolved, integrity, hasInstallScript }] of Object.entries(packages)) {
    if (place === '') continue;
    assert(integrity?.startsWith('sha512-'), `${place} has no checksum`);
    assert(
      resolved === undefined || resolved.startsWith('https://registry.npmjs.org/'),
      `${place} comes from ${resolved}`,
    );
    if (hasInstallScript) assert.equal(allowScripts[place.replace(/^.*node_modules\//, '')], false, place);
  }
  assert.match(read('.npmrc'), /^onnxruntime-node-install=skip$/m);
});

test("ONNX Runtime's own script, for versions of npm that run it, does nothing under the project's settings", (t) => {
  // Not even the look-up of a name succeeds in a network of its own.
  const isolated = ['unshare', '-n'];
  const reason = whyUnusable([...isolated, 'true']);
  if (reason !== undefined) {
    t.skip(`no network of its own for the test: ${reason}`);
    return;
  }
  const script = path.join(PROJECT_DIR, 'node_modules/onnxruntime-node/script/install.js');
  const run = (settings: Record<string, string>) =>
    spawnSync('unshare', ['-n', process.execPath, script], {
      env: { PATH: process.env.PATH, ...settings },
      timeout: 60_000,
    });
  // As npm hands on a key of .npmrc.
  assert.equal(run({ npm_config_onnxruntime_node_install: 'skip' }).status, 0);
  assert.notEqual(
    run({ npm_config_onnxruntime_node_install: 'cuda12' }).status,
    0,
    'the script no longer downloads: the setting can go',
  );
});
