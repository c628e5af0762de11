import assert from 'node:assert/strict';
import { once } from 'node:events';
import {
  closeSync,
  existsSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readlinkSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { request } from 'node:http';
import { connect, createServer, type Socket } from 'node:net';
import { networkInterfaces, tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { SystemError } from '../../../src/system/errno.ts';
import { tryLock, unlock } from '../../../src/system/flock.ts';
import { type Listener, type ListenerOptions, openListener } from '../../../src/system/listener.ts';
import { startFixture } from './child.ts';

const hasIPv6 = Object.values(networkInterfaces()).some((all) => all?.some(({ address }) => address === '::1'));

async function open(t: TestContext, host: string, options: Partial<ListenerOptions> = {}): Promise<Listener> {
  const listener = await openListener({ host, port: 0, backlog: 16, ...options });
  t.after(() => listener.close());
  return listener;
}

function temporaryDirectory(t: TestContext): string {
  const directory = mkdtempSync(join(tmpdir(), 'batchport-listener-'));
  t.after(() => rmSync(directory, { recursive: true }));
  return directory;
}

function target({ family, address, port }: Listener) {
  return family === 'unix' ? { socketPath: address } : { host: address, port };
}

/** Body of the answer to a GET on a connection of its own. */
function get(listener: Listener): Promise<string> {
  return new Promise((resolve, reject) => {
    request({ ...target(listener), agent: false }, async (response) => {
      let body = '';
      for await (const chunk of response) body += chunk;
      resolve(body);
    })
      .on('error', reject)
      .end();
  });
}

function connected(listener: Listener): Promise<Socket> {
  const { family, address, port } = listener;
  return new Promise((resolve, reject) => {
    const socket = family === 'unix' ? connect(address) : connect(port, address);
    socket.once('connect', () => resolve(socket)).once('error', reject);
  });
}

for (const kind of ['tcp', 'unix']) {
  const host = (t: TestContext) => (kind === 'tcp' ? '127.0.0.1' : `unix:${join(temporaryDirectory(t), 's')}`);

  test(`a child serves HTTP on the descriptor it inherits (${kind})`, { timeout: 60_000 }, async (t) => {
    const listener = await open(t, host(t));
    const child = startFixture(t, 'http-child', [], [listener.fd]);
    assert.equal(await child.line(), 'listening');
    assert.equal(await get(listener), String(child.pid));
  });

  test(`requests sent while no child runs wait and are answered by the next one (${kind})`, {
    timeout: 60_000,
  }, async (t) => {
    const listener = await open(t, host(t));
    const first = startFixture(t, 'http-child', [], [listener.fd]);
    await first.line();
    first.process.kill('SIGKILL');
    await first.exit;
    const sockets = [await connected(listener), await connected(listener), await connected(listener)];
    const answers = sockets.map(async (socket) => {
      socket.end('GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n');
      let text = '';
      for await (const chunk of socket) text += chunk;
      return text.split('\r\n\r\n')[1];
    });
    const second = startFixture(t, 'http-child', [], [listener.fd]);
    const pid = String(second.pid);
    assert.deepEqual(await Promise.all(answers), [pid, pid, pid]);
  });
}

test('port 0 gives a port that is free, and a port in use is refused by name', async (t) => {
  const listener = await open(t, '127.0.0.1');
  assert.deepEqual([listener.family, listener.address], ['IPv4', '127.0.0.1']);
  assert.ok(listener.port > 0);
  await assert.rejects(openListener({ host: '127.0.0.1', port: listener.port, backlog: 1 }), (error) => {
    assert.ok(error instanceof SystemError);
    assert.equal(error.code, 'EADDRINUSE');
    assert.ok(error.message.includes(`host "127.0.0.1" port ${listener.port}`));
    return true;
  });
});

test('a closed listener leaves its port free, also at once after a connection that the server ended', async (t) => {
  const listener = await open(t, '127.0.0.1');
  const child = startFixture(t, 'http-child', [], [listener.fd]);
  await child.line();
  const socket = await connected(listener);
  socket.write('GET / HTTP/1.1\r\nHost: x\r\n\r\n');
  await once(socket, 'data');
  child.process.stdin?.end();
  await Promise.all([once(socket, 'close'), child.exit]);
  listener.close();
  listener.close();
  const again = await open(t, '127.0.0.1', { port: listener.port });
  assert.equal(again.port, listener.port);
});

test('a listener is inherited only by the children that it is given to', async (t) => {
  const listener = await open(t, '127.0.0.1');
  const name = readlinkSync(`/proc/self/fd/${listener.fd}`);
  for (const fds of [[], [listener.fd]]) {
    const child = startFixture(t, 'http-child', [], fds.length === 0 ? [(await open(t, '127.0.0.1')).fd] : fds);
    await child.line();
    const names = readdirSync(`/proc/${child.pid}/fd`).map((fd) => readlinkSync(`/proc/${child.pid}/fd/${fd}`));
    assert.equal(names.filter((each) => each === name).length, fds.length);
  }
});

test('an address of IPv6 is taken with and without brackets', { skip: !hasIPv6 && 'no IPv6 here' }, async (t) => {
  for (const host of ['::1', '[::1]']) {
    const listener = await open(t, host);
    assert.deepEqual([listener.family, listener.address], ['IPv6', '::1']);
    (await connected(listener)).destroy();
  }
});

test('"::" takes connections of IPv4 too', { skip: !hasIPv6 && 'no IPv6 here' }, async (t) => {
  const { port } = await open(t, '::');
  (await connected({ family: 'IPv4', address: '127.0.0.1', port } as Listener)).destroy();
  (await connected({ family: 'IPv6', address: '::1', port } as Listener)).destroy();
});

test('a name is resolved, and one that does not exist is an error that names it', async (t) => {
  const listener = await open(t, 'localhost');
  assert.ok(['127.0.0.1', '::1'].includes(listener.address));
  (await connected(listener)).destroy();
  await assert.rejects(openListener({ host: 'nosuch.invalid', port: 80, backlog: 1 }), (error) => {
    assert.ok(error instanceof SystemError);
    // Without a network the resolver may not even learn that the name does not exist.
    assert.ok(['ENOTFOUND', 'EAI_AGAIN'].includes(error.code));
    assert.match(error.message, /host "nosuch.invalid" port 80/);
    return true;
  });
});

test('an address of another machine, an empty host and impossible numbers are refused', async () => {
  await assert.rejects(openListener({ host: '192.0.2.1', port: 0, backlog: 1 }), { code: 'EADDRNOTAVAIL' });
  await assert.rejects(openListener({ host: '', port: 0, backlog: 1 }), { code: 'EINVAL' });
  await assert.rejects(openListener({ host: '127.0.0.1', port: 65_536, backlog: 1 }), RangeError);
  await assert.rejects(openListener({ host: '127.0.0.1', port: 0, backlog: 0 }), RangeError);
});

test('the file of a socket goes when its listener is closed, but not one that has taken its place', async (t) => {
  const path = join(temporaryDirectory(t), 's');
  const first = await open(t, `unix:${path}`);
  assert.deepEqual([first.family, first.address, first.port], ['unix', path, 0]);
  rmSync(path);
  const second = await open(t, `unix:${path}`);
  first.close();
  (await connected(second)).destroy();
  second.close();
  assert.equal(existsSync(path), false);
});

test('the socket that a killed server left is replaced, one with a live server is not', {
  timeout: 60_000,
}, async (t) => {
  const path = join(temporaryDirectory(t), 's');
  const leaver = startFixture(t, 'socket-leaver', [path]);
  assert.equal(await leaver.line(), 'listening');
  const inUse = { code: 'EADDRINUSE', message: /another server listens there/ };
  await assert.rejects(open(t, `unix:${path}`), inUse);
  leaver.process.kill('SIGKILL');
  await leaver.exit;
  assert.equal(existsSync(path), true);
  const listener = await open(t, `unix:${path}`);
  (await connected(listener)).destroy();
});

test('a live socket is not replaced when its backlog is full', async (t) => {
  const path = join(temporaryDirectory(t), 's');
  await open(t, `unix:${path}`, { backlog: 1 });
  // Each attempt leaves a dead connection in the backlog, until there is no room for another.
  for (let i = 0; i < 8; i += 1) await assert.rejects(open(t, `unix:${path}`), { code: 'EADDRINUSE' });
  assert.equal(existsSync(path), true);
});

test('while another server is busy at the path, a listener waits', async (t) => {
  const directory = temporaryDirectory(t);
  const directoryFd = openSync(directory, 'r');
  t.after(() => closeSync(directoryFd));
  assert.equal(tryLock(directoryFd, 'exclusive'), true);
  let opened = false;
  const opening = open(t, `unix:${join(directory, 's')}`).then(() => {
    opened = true;
  });
  for (let turn = 0; turn < 100; turn += 1) await new Promise((resolve) => setImmediate(resolve));
  assert.equal(opened, false);
  unlock(directoryFd);
  await opening;
});

test('of many listeners that replace one stale socket at once, one gets it', async (t) => {
  const path = join(temporaryDirectory(t), 's');
  const leaver = startFixture(t, 'socket-leaver', [path]);
  await leaver.line();
  leaver.process.kill('SIGKILL');
  await leaver.exit;
  const outcomes = await Promise.allSettled(Array.from({ length: 8 }, () => open(t, `unix:${path}`)));
  assert.equal(outcomes.filter(({ status }) => status === 'fulfilled').length, 1);
});

test('what is not a socket is never removed', async (t) => {
  const directory = temporaryDirectory(t);
  const file = join(directory, 'file');
  writeFileSync(file, 'precious');
  const link = join(directory, 'link');
  symlinkSync(join(directory, 'nowhere'), link);
  await assert.rejects(open(t, `unix:${file}`), { code: 'EADDRINUSE', message: /not a socket/ });
  await assert.rejects(open(t, `unix:${link}`), { code: 'EADDRINUSE', message: /not a socket/ });
  assert.equal(existsSync(file), true);
});

test('a path that is too long or has no directory is refused', async (t) => {
  const directory = temporaryDirectory(t);
  await assert.rejects(open(t, `unix:${join(directory, 'x'.repeat(107))}`), {
    code: 'ENAMETOOLONG',
    message: /107 bytes/,
  });
  await assert.rejects(open(t, `unix:${join(directory, 'no', 's')}`), { code: 'ENOENT' });
});

test('a socket of another kind of server in the same process counts as live', async (t) => {
  const path = join(temporaryDirectory(t), 's');
  const server = createServer().listen(path);
  t.after(() => server.close());
  await new Promise((resolve) => server.once('listening', resolve));
  await assert.rejects(open(t, `unix:${path}`), { code: 'EADDRINUSE' });
});
