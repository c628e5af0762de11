/**
 * A listening socket that outlives the processes which accept on it.
 *
 * The supervisor opens it and keeps it; each ingress process inherits the descriptor and calls `server.listen({ fd })`.
 * While no ingress runs, the kernel completes connections into the backlog, and the next ingress answers them. Note
 * that `server.listen` sets the backlog anew: children pass the same figure. Bound: the backlog, which the kernel cuts
 * to net.core.somaxconn.
 *
 * A socket in the file system stays there when its owner is killed. Such a file is replaced if nobody listens on it any
 * more, which a connection attempt tells. The directory is locked meanwhile, so that of two servers starting at once
 * one gets the path and the other EADDRINUSE.
 */
import { lookup } from 'node:dns/promises';
import { closeSync, lstatSync, openSync, type Stats, unlinkSync } from 'node:fs';
import { isIP } from 'node:net';
import { constants } from 'node:os';
import { dirname, resolve } from 'node:path';
import { EAGAIN, SystemError, withSystemError } from './errno.ts';
import { lock } from './flock.ts';
import { addressOf, lastErrno, libc } from './libc.ts';
import {
  AF_UNIX,
  addressFamily,
  decodeInternetAddress,
  encodeSocketAddress,
  SOCKADDR_BYTES_MAX,
  type SocketAddress,
  UNIX_PATH_BYTES_MAX,
} from './socket-address.ts';

const { EADDRINUSE, EADDRNOTAVAIL, EAFNOSUPPORT, ECONNREFUSED, EINVAL, ENAMETOOLONG, ENOENT, ETIMEDOUT } =
  constants.errno;

const SOCK_STREAM = 1;
const SOCK_NONBLOCK = 0o4000;
const SOCK_CLOEXEC = 0o2000000;
const SOL_SOCKET = 1;
const SO_REUSEADDR = 2;
const IPPROTO_IPV6 = 41;
const IPV6_V6ONLY = 26;

const UNIX_PREFIX = 'unix:';
const BACKLOG_MAX = 65_535;
/** Another server holds the lock of the directory for a few system calls only. */
const DIRECTORY_LOCK_TIMEOUT_MS = 5_000;

const socket: (family: number, type: number, protocol: number) => number = libc.func(
  'int socket(int family, int type, int protocol)',
);
const setsockopt: (fd: number, level: number, name: number, value: number, valueBytes: number) => number = libc.func(
  'int setsockopt(int fd, int level, int name, int64_t value, uint32_t value_bytes)',
);
const bind: (fd: number, address: number, addressBytes: number) => number = libc.func(
  'int bind(int fd, int64_t address, uint32_t address_bytes)',
);
const connect: (fd: number, address: number, addressBytes: number) => number = libc.func(
  'int connect(int fd, int64_t address, uint32_t address_bytes)',
);
const listen: (fd: number, backlog: number) => number = libc.func('int listen(int fd, int backlog)');
const getsockname: (fd: number, address: number, addressBytes: number) => number = libc.func(
  'int getsockname(int fd, int64_t address, int64_t address_bytes)',
);

export interface ListenerOptions {
  /**
   * An IPv4 or IPv6 address ("[::1]" too), a name, or "unix:" and the path of a socket. "::" takes IPv4 connections
   * too.
   */
  host: string;
  /** 0 lets the kernel choose; without meaning for a path. */
  port: number;
  /** Connections that may wait to be accepted. */
  backlog: number;
}

export interface Listener {
  /** Non-blocking, closed on exec unless spawn passes it on. */
  readonly fd: number;
  /** The address in use, or the absolute path. */
  readonly address: string;
  /** The port in use; 0 for a path. */
  readonly port: number;
  readonly family: 'IPv4' | 'IPv6' | 'unix';
  /**
   * Closes this process's descriptor and removes the socket's file, if it is still this socket's. A second call does
   * nothing.
   */
  close(): void;
}

/**
 * Opens a listening socket. A name is resolved and its addresses are tried in the resolver's order until one belongs to
 * this machine.
 * @throws SystemError that names host and port: EADDRINUSE, EACCES, EADDRNOTAVAIL, ENOTFOUND (no such name),
 * ENAMETOOLONG (a path of more than 107 bytes)
 */
export async function openListener({ host, port, backlog }: ListenerOptions): Promise<Listener> {
  checkRange('port', port, 0, 65_535);
  checkRange('backlog', backlog, 1, BACKLOG_MAX);
  if (host.startsWith(UNIX_PREFIX)) return openUnix(resolve(host.slice(UNIX_PREFIX.length)), backlog);
  const detail = `listen on host "${host}" port ${port}`;
  const addresses = await resolveHost(host, port, detail);
  for (const [index, address] of addresses.entries()) {
    try {
      return openInternet(address, backlog, detail);
    } catch (error) {
      const foreign = error instanceof SystemError && (error.errno === EADDRNOTAVAIL || error.errno === EAFNOSUPPORT);
      if (!foreign || index === addresses.length - 1) throw error;
    }
  }
  throw new SystemError('getaddrinfo', 0, detail, 'ENOTFOUND');
}

type InternetAddress = SocketAddress & { family: 'IPv4' | 'IPv6' };

async function resolveHost(host: string, port: number, detail: string): Promise<InternetAddress[]> {
  const literal = /^\[(.*)\]$/.exec(host)?.[1] ?? host;
  const version = isIP(literal);
  if (version !== 0) return [{ family: version === 4 ? 'IPv4' : 'IPv6', address: literal, port }];
  if (host === '') throw new SystemError('getaddrinfo', EINVAL, `${detail}: the host is empty`);
  try {
    const found = await lookup(host, { all: true, verbatim: true });
    return found.map(({ address, family }) => ({ family: family === 4 ? 'IPv4' : 'IPv6', address, port }));
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code ?? 'ENOTFOUND';
    throw new SystemError('getaddrinfo', 0, `${detail}: the name cannot be resolved`, code);
  }
}

function openInternet(address: InternetAddress, backlog: number, detail: string): Listener {
  const encoded = encodeSocketAddress(address);
  if (encoded === undefined) throw new SystemError('bind', EADDRNOTAVAIL, detail);
  return withSocket(addressFamily(address), detail, (fd) => {
    // A restarted server may take its port back while connections of the one before it linger in TIME_WAIT.
    setOption(fd, SOL_SOCKET, SO_REUSEADDR, 1, detail);
    if (address.address === '::') setOption(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0, detail);
    check('bind', bind(fd, addressOf(encoded.buffer), encoded.byteLength), detail);
    check('listen', listen(fd, backlog), detail);
    const { address: text, port, family } = boundAddress(fd, detail);
    return makeListener({ fd, address: text, port, family }, () => {});
  });
}

async function openUnix(path: string, backlog: number): Promise<Listener> {
  const detail = `listen on host "${UNIX_PREFIX}${path}"`;
  const encoded = encodeSocketAddress({ family: 'unix', path });
  if (encoded === undefined) {
    throw new SystemError(
      'bind',
      ENAMETOOLONG,
      `${detail}: a path has at most ${UNIX_PATH_BYTES_MAX} bytes, none zero`,
    );
  }
  const directoryFd = withSystemError(detail, () => openSync(dirname(path), 'r'));
  try {
    await lockDirectory(directoryFd, detail);
    removeStale(path, encoded, detail);
    return withSocket(AF_UNIX, detail, (fd) => {
      check('bind', bind(fd, addressOf(encoded.buffer), encoded.byteLength), detail);
      const bound = statOf(path);
      check('listen', listen(fd, backlog), detail);
      return makeListener({ fd, address: path, port: 0, family: 'unix' }, () => {
        const now = statOf(path);
        if (now !== undefined && now.ino === bound?.ino && now.dev === bound.dev) unlinkSync(path);
      });
    });
  } finally {
    closeSync(directoryFd);
  }
}

async function lockDirectory(directoryFd: number, detail: string): Promise<void> {
  const signal = AbortSignal.timeout(DIRECTORY_LOCK_TIMEOUT_MS);
  try {
    await lock(directoryFd, 'exclusive', { signal });
  } catch (error) {
    if (!signal.aborted) throw error;
    throw new SystemError('flock', ETIMEDOUT, `${detail}: another process keeps the directory locked`);
  }
}

/** Removes a socket's file that nobody listens on. Anything else at the path is EADDRINUSE. */
function removeStale(path: string, encoded: Uint8Array<ArrayBuffer>, detail: string): void {
  const stat = statOf(path);
  if (stat === undefined) return;
  if (!stat.isSocket()) throw new SystemError('bind', EADDRINUSE, `${detail}: the path is there and is not a socket`);
  const errno = withSocket(AF_UNIX, detail, (fd) => {
    const outcome = connect(fd, addressOf(encoded.buffer), encoded.byteLength) < 0 ? lastErrno() : 0;
    closeSync(fd);
    return outcome;
  });
  // EAGAIN: somebody listens, and the backlog is full.
  if (errno === 0 || errno === EAGAIN)
    throw new SystemError('bind', EADDRINUSE, `${detail}: another server listens there`);
  if (errno === ENOENT) return;
  if (errno !== ECONNREFUSED) throw new SystemError('connect', errno, detail);
  withSystemError(detail, () => unlinkSync(path));
}

/** Runs `use` on a new socket, which it owns from then on unless it throws. */
function withSocket<T>(family: number, detail: string, use: (fd: number) => T): T {
  const fd = check('socket', socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), detail);
  try {
    return use(fd);
  } catch (error) {
    closeSync(fd);
    throw error;
  }
}

function makeListener(fields: Omit<Listener, 'close'>, removeFile: () => void): Listener {
  let open = true;
  return {
    ...fields,
    close() {
      if (!open) return;
      open = false;
      removeFile();
      closeSync(fields.fd);
    },
  };
}

function boundAddress(fd: number, detail: string): InternetAddress {
  const bytes = new Uint8Array(new ArrayBuffer(SOCKADDR_BYTES_MAX));
  const length = new Uint32Array(new ArrayBuffer(4)).fill(SOCKADDR_BYTES_MAX);
  check('getsockname', getsockname(fd, addressOf(bytes.buffer), addressOf(length.buffer)), detail);
  return decodeInternetAddress(bytes);
}

function setOption(fd: number, level: number, name: number, value: number, detail: string): void {
  const bytes = new Int32Array(new ArrayBuffer(4)).fill(value);
  check('setsockopt', setsockopt(fd, level, name, addressOf(bytes.buffer), bytes.byteLength), detail);
}

function check(syscall: string, result: number, detail: string): number {
  if (result < 0) throw new SystemError(syscall, lastErrno(), detail);
  return result;
}

function statOf(path: string): Stats | undefined {
  return lstatSync(path, { throwIfNoEntry: false });
}

function checkRange(name: string, value: number, min: number, max: number): void {
  if (!Number.isInteger(value) || value < min || value > max) {
    throw new RangeError(`The ${name} must be a whole number from ${min} to ${max}, not ${value}`);
  }
}
