import assert from 'node:assert/strict';
import { test } from 'node:test';
import { decodeInternetAddress, encodeSocketAddress } from '../../../src/system/socket-address.ts';

test('internet addresses have the bytes of the C library and read back as they were', () => {
  const v4 = encodeSocketAddress({ family: 'IPv4', address: '127.0.0.1', port: 8000 });
  assert.equal(Buffer.from(v4!).toString('hex'), '02001f407f0000010000000000000000');
  assert.deepEqual(decodeInternetAddress(v4!), { family: 'IPv4', address: '127.0.0.1', port: 8000 });
  const v6 = encodeSocketAddress({ family: 'IPv6', address: '2001:DB8:0::1', port: 65535 });
  assert.equal(Buffer.from(v6!).toString('hex'), `0a00ffff00000000${'20010db8000000000000000000000001'}00000000`);
  assert.deepEqual(decodeInternetAddress(v6!), { family: 'IPv6', address: '2001:db8::1', port: 65535 });
});

test('a zone is the number of its network interface, and one that does not exist is no address', () => {
  const bytes = encodeSocketAddress({ family: 'IPv6', address: 'fe80::1%lo', port: 1 });
  assert.equal(new DataView(bytes!.buffer).getUint32(24, true), 1);
  assert.equal(encodeSocketAddress({ family: 'IPv6', address: 'fe80::1%nosuch', port: 1 }), undefined);
  assert.equal(encodeSocketAddress({ family: 'IPv4', address: '127.0.0.1%lo', port: 1 }), undefined);
});

test('what is no address has no bytes', () => {
  assert.equal(encodeSocketAddress({ family: 'IPv4', address: '::1', port: 1 }), undefined);
  assert.equal(encodeSocketAddress({ family: 'IPv6', address: 'localhost', port: 1 }), undefined);
});

test('a path ends with a zero and has at most 107 bytes', () => {
  assert.equal(Buffer.from(encodeSocketAddress({ family: 'unix', path: '/é' })!).toString('hex'), '01002fc3a900');
  assert.equal(encodeSocketAddress({ family: 'unix', path: 'x'.repeat(107) })?.byteLength, 110);
  assert.equal(encodeSocketAddress({ family: 'unix', path: 'x'.repeat(108) }), undefined);
  assert.equal(encodeSocketAddress({ family: 'unix', path: `${'x'.repeat(106)}é` }), undefined);
  assert.equal(encodeSocketAddress({ family: 'unix', path: 'a\0b' }), undefined);
  assert.equal(encodeSocketAddress({ family: 'unix', path: '' }), undefined);
});
