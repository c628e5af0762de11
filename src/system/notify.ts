/**
 * What a service tells the service manager that started it: datagrams of "NAME=value" lines to the Unix socket named in NOTIFY_SOCKET.
 *
 * Source: sd_notify(3), sd_watchdog_enabled(3). The socket's name is a path, or an abstract name written with an '@' for its leading zero byte. Invariant:
 * nothing here blocks or throws: a service works the same without a manager, with one that has gone, and with one that does not read. Bound: one
 * descriptor, messages of MESSAGE_BYTES_MAX.
 *
 * Owner: the process that the manager started. It takes the variables out of its environment, so that no child of it speaks in its name.
 */
import { closeSync } from 'node:fs';
import { errnoName } from './errno.ts';
import { addressOf, lastErrno, libc } from './libc.ts';
import { AF_UNIX, encodeSocketAddress, UNIX_PATH_BYTES_MAX } from './socket-address.ts';

const SOCK_DGRAM = 2;
const SOCK_NONBLOCK = 0o4000;
const SOCK_CLOEXEC = 0o2000000;
const MSG_DONTWAIT = 0x40;
const MSG_NOSIGNAL = 0x4000;

/** Longer ones are dropped by systemd. */
const MESSAGE_BYTES_MAX = 4096;
/** A value is for people or a number; at most four bytes a character. */
const VALUE_LENGTH_MAX = 500;

const socket: (family: number, type: number, protocol: number) => number = libc.func(
  'int socket(int family, int type, int protocol)',
);
const sendto: (
  fd: number,
  bytes: number,
  byteLength: number,
  flags: number,
  address: number,
  addressBytes: number,
) => number = libc.func(
  'int64_t sendto(int fd, int64_t bytes, size_t length, int flags, int64_t address, uint32_t address_bytes)',
);

/** Assignments of one message, by name. */
export type Notification = Readonly<Record<string, string | number>>;

export interface ServiceManager {
  /** Whether there is one to tell things to. */
  readonly present: boolean;
  /** Why the socket that was named cannot be used. */
  readonly problem: string | undefined;
  /** Microseconds that may pass between two signs of life (`WATCHDOG=1`); undefined where none is expected. */
  readonly watchdogUs: number | undefined;
  /** @returns whether the message was taken. */
  notify(message: Notification): boolean;
  close(): void;
}

/**
 * The service manager of this process. Takes its variables out of `env`: only the first call can find one.
 *
 * @param pid of the process that is asked whether it is alive: a manager that means another one names it
 */
export function takeServiceManager(
  env: Record<string, string | undefined> = process.env,
  pid: number = process.pid,
): ServiceManager {
  const { NOTIFY_SOCKET: name, WATCHDOG_USEC: watchdog, WATCHDOG_PID: watched } = env;
  for (const variable of ['NOTIFY_SOCKET', 'WATCHDOG_USEC', 'WATCHDOG_PID']) delete env[variable];
  if (name === undefined || name === '') return absent(undefined);
  const address = encodeAddress(name);
  if (address === undefined) return absent(`NOTIFY_SOCKET=${name}: not a path or an abstract name of a Unix socket`);
  const fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return absent(`a socket to speak to ${name} with: ${errnoName(lastErrno())}`);
  const watchdogUs = /^[1-9]\d{0,15}$/.test(watchdog ?? '') ? Number(watchdog) : undefined;
  const isForUs = watched === undefined || watched === '' || Number(watched) === pid;
  return new SocketManager(fd, address, isForUs ? watchdogUs : undefined);
}

class SocketManager implements ServiceManager {
  readonly present = true;
  readonly problem = undefined;
  readonly watchdogUs: number | undefined;
  readonly #address: Uint8Array<ArrayBuffer>;
  #fd: number;

  constructor(fd: number, address: Uint8Array<ArrayBuffer>, watchdogUs: number | undefined) {
    this.#fd = fd;
    this.#address = address;
    this.watchdogUs = watchdogUs;
  }

  notify(message: Notification): boolean {
    if (this.#fd < 0) return false;
    const bytes = encodeMessage(message);
    const { buffer, byteLength } = this.#address;
    const flags = MSG_DONTWAIT | MSG_NOSIGNAL;
    return sendto(this.#fd, addressOf(bytes.buffer), bytes.byteLength, flags, addressOf(buffer), byteLength) >= 0;
  }

  close(): void {
    if (this.#fd < 0) return;
    closeSync(this.#fd);
    this.#fd = -1;
  }
}

function absent(problem: string | undefined): ServiceManager {
  return { present: false, problem, watchdogUs: undefined, notify: () => false, close: () => {} };
}

/** @returns undefined for what is neither a path nor an abstract name, or is too long */
function encodeAddress(name: string): Uint8Array<ArrayBuffer> | undefined {
  if (name.startsWith('/')) return encodeSocketAddress({ family: 'unix', path: name });
  const text = new TextEncoder().encode(name);
  if (!name.startsWith('@') || text.byteLength < 2 || text.byteLength > UNIX_PATH_BYTES_MAX + 1) return undefined;
  // An abstract name is not ended by a zero byte: all of its declared length counts.
  const bytes = new Uint8Array(new ArrayBuffer(2 + text.byteLength));
  new DataView(bytes.buffer).setUint16(0, AF_UNIX, true);
  bytes.set(text, 2);
  bytes[2] = 0;
  return bytes;
}

function encodeMessage(message: Notification): Uint8Array<ArrayBuffer> {
  const lines = Object.entries(message).map(([name, value]) => `${name}=${singleLine(String(value))}\n`);
  const text = new TextEncoder().encode(lines.join(''));
  const bytes = new Uint8Array(new ArrayBuffer(Math.min(text.byteLength, MESSAGE_BYTES_MAX)));
  bytes.set(text.subarray(0, bytes.byteLength));
  return bytes;
}

/** A line break in a value would begin another assignment. */
function singleLine(value: string): string {
  const line = value.replaceAll(/[\p{Cc}\u2028\u2029]+/gu, ' ');
  return line.length <= VALUE_LENGTH_MAX ? line : `${line.slice(0, VALUE_LENGTH_MAX - 1)}…`;
}
