import assert from 'node:assert/strict';
import https from 'node:https';
import type { AddressInfo } from 'node:net';
import { test } from 'node:test';
import { Client } from '../../../src/client/client.ts';

// Made for this test alone: a self-signed certificate for 127.0.0.1, valid until 2126, and its key, which protects nothing.
const KEY = `-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgWMGUpfRfxkZmSO/7
PYii0DvfLhdAAIBHxzqXjr4KVJuhRANCAAR3nWm5/rferDOzCEIvPQFdXff4Kg5O
OB0vSIbEkqnRLscaTSSlwisrvW1HWDQp8eykdB9BtiTLOrt+oGF+n/Bq
-----END PRIVATE KEY-----`;
const CERTIFICATE = `-----BEGIN CERTIFICATE-----
MIIBmzCCAUGgAwIBAgIUA3N3mQkC7BiknigqaxV/A6J7pQcwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEzMDE5MzUzNloYDzIxMjYxMTA2
MTkzNTM2WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAAR3nWm5/rferDOzCEIvPQFdXff4Kg5OOB0vSIbEkqnRLscaTSSlwisr
vW1HWDQp8eykdB9BtiTLOrt+oGF+n/Bqo28wbTAdBgNVHQ4EFgQUSSpJ4FEb4i7z
4DUKNucl/+m3980wHwYDVR0jBBgwFoAUSSpJ4FEb4i7z4DUKNucl/+m3980wDwYD
VR0TAQH/BAUwAwEB/zAaBgNVHREEEzARgglsb2NhbGhvc3SHBH8AAAEwCgYIKoZI
zj0EAwIDSAAwRQIgTYwx459/HPaWPim/9uAnm2uAEUzxCDvvBedE+blPlcUCIQCZ
L87jl9kePNUpZx5UEbQzobgSSb3wuCfZi6Kk69wJPQ==
-----END CERTIFICATE-----`;

test('https works with a certificate authority of the caller, and refuses an unknown one before sending anything', async (t) => {
  let requests = 0;
  const server = https.createServer({ key: KEY, cert: CERTIFICATE }, (_request, response) => {
    requests++;
    response.end('{"name":"secure"}');
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  t.after(() => new Promise((resolve) => server.close(resolve)));
  const url = `https://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const trusting = new Client(url, { tls: { ca: CERTIFICATE } });
  t.after(() => trusting.close());
  assert.equal((await trusting.serverMetadata()).name, 'secure');
  const stranger = new Client(url, { retry: false });
  t.after(() => stranger.close());
  await assert.rejects(stranger.serverMetadata(), { code: 'CONNECT_FAILED', sent: false, message: /self-signed/ });
  assert.equal(requests, 1);
});
