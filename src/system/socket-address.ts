/**
 * Addresses to listen on, in the form of the C library (struct sockaddr) and as text.
 *
 * Sources: ip(7), ipv6(7), unix(7). Ports and addresses are in network byte order, the family and the scope in the
 * machine's (little-endian on both supported architectures). Bound: a path of UNIX_PATH_BYTES_MAX bytes, which leaves
 * room for the terminating zero.
 */
import { strict as assert } from 'node:assert';
import { addressOf, libc } from './libc.ts';

export const AF_UNIX = 1;
export const AF_INET = 2;
export const AF_INET6 = 10;

export const UNIX_PATH_BYTES_MAX = 107;

/** Enough for any sockaddr. */
export const SOCKADDR_BYTES_MAX = 128;

const INET6_TEXT_BYTES_MAX = 46;

const inet_pton: (family: number, text: string, address: number) => number = libc.func(
  'int inet_pton(int family, const char *text, int64_t address)',
);
const inet_ntop: (family: number, address: number, text: number, textBytes: number) => number = libc.func(
  'int64_t inet_ntop(int family, int64_t address, int64_t text, uint32_t text_bytes)',
);
const if_nametoindex: (name: string) => number = libc.func('uint32_t if_nametoindex(const char *name)');

export type SocketAddress =
  | { readonly family: 'IPv4' | 'IPv6'; readonly address: string; readonly port: number }
  | { readonly family: 'unix'; readonly path: string };

/** The `AF_` constant of an address. */
export function addressFamily(address: SocketAddress): number {
  return address.family === 'unix' ? AF_UNIX : address.family === 'IPv4' ? AF_INET : AF_INET6;
}

/**
 * An address as bytes of a struct sockaddr, exactly as long as it is to be declared.
 * @returns undefined when the text is not an address of its family, or names a network interface that does not exist
 * ("fe80::1%eth9")
 */
export function encodeSocketAddress(socketAddress: SocketAddress): Uint8Array<ArrayBuffer> | undefined {
  if (socketAddress.family === 'unix') return encodePath(socketAddress.path);
  const isIPv4 = socketAddress.family === 'IPv4';
  const bytes = new Uint8Array(new ArrayBuffer(isIPv4 ? 16 : 28));
  const fields = new DataView(bytes.buffer);
  const family = addressFamily(socketAddress);
  fields.setUint16(0, family, true);
  fields.setUint16(2, socketAddress.port, false);
  const [text = '', zone] = socketAddress.address.split('%');
  if (inet_pton(family, text, addressOf(bytes.buffer) + (isIPv4 ? 4 : 8)) !== 1) return undefined;
  if (zone !== undefined) {
    const index = isIPv4 ? 0 : if_nametoindex(zone);
    if (index === 0) return undefined;
    fields.setUint32(24, index, true);
  }
  return bytes;
}

/** The IPv4 or IPv6 address in a struct sockaddr, as getsockname(2) fills it in. */
export function decodeInternetAddress(bytes: Uint8Array<ArrayBuffer>): SocketAddress & { family: 'IPv4' | 'IPv6' } {
  const fields = new DataView(bytes.buffer);
  const family = fields.getUint16(0, true);
  assert(family === AF_INET || family === AF_INET6, `not an internet address: family ${family}`);
  const text = new Uint8Array(new ArrayBuffer(INET6_TEXT_BYTES_MAX));
  const start = addressOf(bytes.buffer) + (family === AF_INET ? 4 : 8);
  assert(inet_ntop(family, start, addressOf(text.buffer), text.byteLength) !== 0, 'an internet address fits its text');
  return {
    family: family === AF_INET ? 'IPv4' : 'IPv6',
    address: new TextDecoder().decode(text.subarray(0, text.indexOf(0))),
    port: fields.getUint16(2, false),
  };
}

function encodePath(path: string): Uint8Array<ArrayBuffer> | undefined {
  const text = new TextEncoder().encode(path);
  if (text.byteLength === 0 || text.byteLength > UNIX_PATH_BYTES_MAX || text.includes(0)) return undefined;
  const bytes = new Uint8Array(new ArrayBuffer(2 + text.byteLength + 1));
  new DataView(bytes.buffer).setUint16(0, AF_UNIX, true);
  bytes.set(text, 2);
  return bytes;
}
