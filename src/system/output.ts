/**
 * Lines to a descriptor whose other end belongs to somebody else, such as stderr: a reader that does not read, one that has gone and a disk that is full
 * cost lines, never time, and nothing here throws.
 *
 * A pipe or a terminal is opened a second time, since O_NONBLOCK belongs to the open file that other processes share; a socket is told with each message not to
 * wait; a file is written by a thread of libuv's. Bound: `maxBytes` of lines that wait; beyond them the newest are dropped.
 */
import { closeSync, constants as fs, fstatSync, openSync, write, writeSync } from 'node:fs';
import { EAGAIN, EINTR } from './errno.ts';
import { addressOf, lastErrno, libc } from './libc.ts';

const MSG_DONTWAIT = 0x40;
const MSG_NOSIGNAL = 0x4000;
/** How soon a reader that was behind is tried again. */
const RETRY_MS = 20;

const sendBytes: (fd: number, bytes: number, byteLength: number, flags: number) => number = libc.func(
  'int64_t send(int fd, int64_t bytes, size_t length, int flags)',
);

/** Bytes taken now; AGAIN: none, but later; LOST: none, ever. */
type Put = (bytes: Buffer) => number;
const AGAIN = -1;
const LOST = -2;

export class LineOutput {
  readonly #fd: number;
  readonly #maxBytes: number;
  /** undefined for files, which have no such thing as a write that does not wait. */
  readonly #put: Put | undefined;
  readonly #ownFd: number | undefined;
  readonly #lines: Buffer[] = [];
  #bytes = 0;
  #timer: NodeJS.Timeout | undefined;
  #writing = false;

  constructor(fd: number, maxBytes: number) {
    this.#fd = fd;
    this.#maxBytes = maxBytes;
    const stats = fstatSync(fd);
    if (stats.isSocket()) this.#put = (bytes) => putSocket(fd, bytes);
    else if (stats.isFIFO() || stats.isCharacterDevice()) {
      const own = openAgain(fd);
      if (typeof own === 'number') this.#ownFd = own;
      this.#put = (bytes) => (own === 'no reader' ? LOST : putDescriptor(own ?? fd, bytes));
    }
  }

  /** Takes a line, its end included. */
  write(line: string): void {
    const bytes = Buffer.from(line);
    if (this.#bytes + bytes.length > this.#maxBytes) return;
    this.#lines.push(bytes);
    this.#bytes += bytes.length;
    if (this.#timer === undefined && !this.#writing) this.#pump();
  }

  /** Writes what waits, as far as that needs no waiting. For the end of a process. */
  flush(): void {
    const put = this.#put ?? ((bytes: Buffer) => putDescriptor(this.#fd, bytes));
    this.#putAll(put);
  }

  /** Gives back what was opened; lines that wait are lost. */
  close(): void {
    clearTimeout(this.#timer);
    this.#take(this.#lines.length);
    if (this.#ownFd !== undefined) closeSync(this.#ownFd);
  }

  #pump(): void {
    if (this.#put === undefined) this.#writeFile();
    else if (!this.#putAll(this.#put)) {
      this.#timer = setTimeout(() => {
        this.#timer = undefined;
        this.#pump();
      }, RETRY_MS).unref();
    }
  }

  /** Line by line, so that short ones of several processes do not mix. @returns whether nothing waits any more. */
  #putAll(put: Put): boolean {
    for (let line = this.#lines[0]; line !== undefined; line = this.#lines[0]) {
      const taken = put(line);
      if (taken === AGAIN) return false;
      if (taken === LOST || taken === line.length) this.#take(1);
      else {
        this.#lines[0] = line.subarray(taken);
        this.#bytes -= taken;
      }
    }
    return true;
  }

  #writeFile(): void {
    if (this.#lines.length === 0) return;
    const bytes = this.#take(this.#lines.length);
    this.#writing = true;
    write(this.#fd, bytes, 0, bytes.length, null, (error, written) => {
      this.#writing = false;
      if (error === null && written < bytes.length) {
        this.#lines.unshift(bytes.subarray(written));
        this.#bytes += bytes.length - written;
      }
      this.#pump();
    });
  }

  #take(count: number): Buffer {
    const lines = this.#lines.splice(0, count);
    for (const { length } of lines) this.#bytes -= length;
    return lines.length === 1 ? lines[0]! : Buffer.concat(lines);
  }
}

/** The pipe or terminal behind a descriptor as an open file of our own; undefined where that is not allowed. */
function openAgain(fd: number): number | 'no reader' | undefined {
  try {
    return openSync(`/proc/self/fd/${fd}`, fs.O_WRONLY | fs.O_NONBLOCK | fs.O_NOCTTY);
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'ENXIO' ? 'no reader' : undefined;
  }
}

function putDescriptor(fd: number, bytes: Buffer): number {
  try {
    return writeSync(fd, bytes);
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EAGAIN' ? AGAIN : LOST;
  }
}

function putSocket(fd: number, bytes: Buffer): number {
  const address = addressOf(bytes.buffer as ArrayBuffer) + bytes.byteOffset;
  const sent = sendBytes(fd, address, bytes.length, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent >= 0) return sent;
  return [EAGAIN, EINTR].includes(lastErrno()) ? AGAIN : LOST;
}
