import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { closeSync, constants as fs, openSync, readFileSync, readSync } from 'node:fs';
import net from 'node:net';
import path from 'node:path';
import { type TestContext, test } from 'node:test';
import { LineOutput } from '../../../src/system/output.ts';
import { temporaryDirectory } from '../../support/repository.ts';

const MAX_BYTES = 1024 * 1024;
const LIMIT = { timeout: 60_000 };

/** Both ends of a named pipe; the writing one waits when the pipe is full. */
function namedPipe(t: TestContext): { readFd: number; writeFd: number } {
  const file = path.join(temporaryDirectory(t), 'pipe');
  execFileSync('mkfifo', [file]);
  const readFd = openSync(file, fs.O_RDONLY | fs.O_NONBLOCK);
  const writeFd = openSync(file, fs.O_WRONLY);
  t.after(() => closeSync(writeFd));
  return { readFd, writeFd };
}

function lineOutput(t: TestContext, fd: number, maxBytes = MAX_BYTES): LineOutput {
  const output = new LineOutput(fd, maxBytes);
  t.after(() => output.close());
  return output;
}

const lineOf = (n: number): string => `${String(n).padStart(99, '0')}\n`;

/** Text read until it holds `bytes`, letting the event loop turn whenever there is nothing to read. */
async function readText(fd: number, bytes: number): Promise<string> {
  const chunks: Buffer[] = [];
  for (let length = 0; length < bytes; ) {
    const chunk = Buffer.alloc(65_536);
    try {
      const count = readSync(fd, chunk);
      chunks.push(chunk.subarray(0, count));
      length += count;
    } catch (error) {
      assert.equal((error as NodeJS.ErrnoException).code, 'EAGAIN');
      await new Promise((resolve) => setTimeout(resolve, 1));
    }
  }
  return Buffer.concat(chunks).toString();
}

function assertFirstLines(text: string, count: number): void {
  assert.equal(text, Array.from({ length: count }, (_, n) => lineOf(n)).join(''));
}

test('lines wait for the reader of a full pipe, in order, and nobody waits for it', LIMIT, async (t) => {
  const { readFd, writeFd } = namedPipe(t);
  t.after(() => closeSync(readFd));
  const output = lineOutput(t, writeFd);
  for (let n = 0; n < 5000; n++) output.write(lineOf(n));
  output.flush();
  assertFirstLines(await readText(readFd, 500_000), 5000);
});

test('lines beyond the bound are dropped, the oldest stay', LIMIT, async (t) => {
  const { readFd, writeFd } = namedPipe(t);
  t.after(() => closeSync(readFd));
  const output = lineOutput(t, writeFd, 10_000);
  for (let n = 0; n < 5000; n++) output.write(lineOf(n));
  let text = '';
  while (!text.includes('end')) {
    output.write('end\n');
    text += await readText(readFd, 1);
  }
  const kept = text.slice(0, text.indexOf('end'));
  assertFirstLines(kept, kept.length / 100);
  assert(kept.length < 500_000);
});

test('a socket whose other end does not read', LIMIT, async (t) => {
  const server = net.createServer({ pauseOnConnect: true });
  const accepted = new Promise<net.Socket>((resolve) => server.once('connection', resolve));
  const name = path.join(temporaryDirectory(t), 'socket');
  server.listen(name);
  const client = net.connect(name);
  const reader = await accepted;
  t.after(() => {
    for (const one of [client, reader]) one.destroy();
    server.close();
  });
  const { fd } = (client as unknown as { _handle: { fd: number } })._handle;
  const output = lineOutput(t, fd);
  for (let n = 0; n < 10_000; n++) output.write(lineOf(n));
  output.flush();
  let text = '';
  reader.setEncoding('latin1').resume();
  await new Promise<void>((resolve) => {
    reader.on('data', (chunk) => {
      text += chunk;
      if (text.length >= 1_000_000) resolve();
    });
  });
  assertFirstLines(text, 10_000);
});

test('a reader that has gone and a disk that is full are no errors', (t) => {
  const { readFd, writeFd } = namedPipe(t);
  const gone = lineOutput(t, writeFd);
  closeSync(readFd);
  const fullFd = openSync('/dev/full', 'w');
  t.after(() => closeSync(fullFd));
  const late = lineOutput(t, writeFd);
  const full = lineOutput(t, fullFd);
  for (const output of [gone, late, full]) {
    for (let n = 0; n < 3; n++) output.write(lineOf(n));
    output.flush();
  }
});

test('a file gets every line, those that waited at the end too', async (t) => {
  const file = path.join(temporaryDirectory(t), 'log');
  const fd = openSync(file, 'a');
  const output = lineOutput(t, fd);
  for (let n = 0; n < 3; n++) output.write(lineOf(n));
  output.flush();
  while (readFileSync(file).length < 300) await new Promise((resolve) => setTimeout(resolve, 1));
  const lines = readFileSync(file, 'utf8').trimEnd().split('\n');
  assert.deepEqual(
    lines.sort(),
    [0, 1, 2].map((n) => lineOf(n).trimEnd()),
  );
  closeSync(fd);
});
