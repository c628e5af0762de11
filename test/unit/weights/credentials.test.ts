/** Who is told what, and that nobody else is told it, not even in a message. */
import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { type TestContext, test } from 'node:test';
import { shownUrl, weightUrlProblem } from '../../../src/config/weight-url.ts';
import { authorizationFor, type CredentialSources, credentialsProblem } from '../../../src/weights/credentials.ts';
import { temporaryDirectory } from '../../support/repository.ts';

function sources(t: TestContext, content: unknown, env: CredentialSources['env'] = {}): CredentialSources {
  const home = temporaryDirectory(t, 'credentials');
  const file = content === undefined ? undefined : path.join(home, 'credentials.json');
  if (file !== undefined) fs.writeFileSync(file, typeof content === 'string' ? content : JSON.stringify(content));
  return { file, env, home };
}

test('each origin gets its own, from the file, a variable or another file, and other origins get nothing', (t) => {
  const own = sources(
    t,
    {
      'https://a.example': { authorization: 'Bearer a' },
      'https://b.example:8443': { authorization_env: 'B_AUTHORIZATION' },
      'http://10.0.0.5': { authorization_file: 'c' },
    },
    { B_AUTHORIZATION: 'Bearer b' },
  );
  fs.writeFileSync(path.join(own.home, 'c'), 'Basic c\n');
  assert.equal(credentialsProblem(own), undefined);
  const told = [
    'https://a.example',
    'https://b.example:8443',
    'http://10.0.0.5',
    'http://a.example',
    'https://b.example',
  ];
  assert.deepEqual(
    told.map((origin) => authorizationFor(origin, own)),
    ['Bearer a', 'Bearer b', 'Basic c', undefined, undefined],
  );
  fs.writeFileSync(path.join(own.home, 'c'), 'Basic renewed');
  assert.equal(authorizationFor('http://10.0.0.5', own), 'Basic renewed');
});

test('Hugging Face gets the token of its own tools, and nobody else does', (t) => {
  const env = { HF_TOKEN: 'hf_a' };
  assert.equal(authorizationFor('https://huggingface.co', sources(t, undefined, env)), 'Bearer hf_a');
  assert.equal(authorizationFor('http://huggingface.co', sources(t, undefined, env)), undefined);
  assert.equal(authorizationFor('https://cdn-lfs.huggingface.co', sources(t, undefined, env)), undefined);
  const mirror = { ...env, HF_ENDPOINT: 'https://mirror.example/hf' };
  assert.equal(authorizationFor('https://mirror.example', sources(t, undefined, mirror)), 'Bearer hf_a');
  assert.equal(authorizationFor('https://huggingface.co', sources(t, undefined, mirror)), undefined);
  const stored = sources(t, undefined);
  fs.mkdirSync(path.join(stored.home, '.cache/huggingface'), { recursive: true });
  fs.writeFileSync(path.join(stored.home, '.cache/huggingface/token'), 'hf_b\n');
  assert.equal(authorizationFor('https://huggingface.co', stored), 'Bearer hf_b');
  const elsewhere = {
    ...stored,
    env: { HF_TOKEN_PATH: path.join(stored.home, '.cache/huggingface/token'), HF_HOME: '/nowhere' },
  };
  assert.equal(authorizationFor('https://huggingface.co', elsewhere), 'Bearer hf_b');
  assert.equal(authorizationFor('https://huggingface.co', sources(t, undefined)), undefined);
});

for (const [what, content, pattern] of [
  ['that is no JSON', '{"https://a": {"authorization": "secret"', /is not valid JSON$/],
  ['that is a list', ['secret'], /is not an object of origins/],
  ['with an unknown key', { 'https://a': { token: 'secret' } }, /is not an object of origins/],
  [
    'with two ways at once',
    { 'https://a': { authorization: 'secret', authorization_env: 'A' } },
    /is not an object of origins/,
  ],
  ['with a path in an origin', { 'https://a/secret': { authorization: 'secret' } }, /has a key that is not an origin/],
  ['with a key that is no URL', { secret: { authorization: 'secret' } }, /has a key that is not an origin/],
  ['with a line end in a value', { 'https://a': { authorization: 'secret\nx' } }, /cannot stand in a header/],
  ['with a variable that is not set', { 'https://a': { authorization_env: 'NONE' } }, /the variable NONE is not set/],
  ['with a file that is not there', { 'https://a': { authorization_file: 'none' } }, /none cannot be read: ENOENT/],
] as const) {
  test(`a credentials file ${what} is refused, and its content is not shown`, (t) => {
    const problem = credentialsProblem(sources(t, content));
    assert.match(problem ?? '', pattern);
    assert.doesNotMatch(problem ?? '', /secret/);
  });
}

test('a credentials file that is not there, a directory or a pipe is refused without waiting', (t) => {
  const own = sources(t, {});
  assert.match(credentialsProblem({ ...own, file: path.join(own.home, 'none') }) ?? '', /ENOENT/);
  assert.match(credentialsProblem({ ...own, file: own.home }) ?? '', /not a regular file/);
});

for (const [url, problem] of [
  ['https://host/model.onnx?X-Amz-Signature=abc', undefined],
  ['http://127.0.0.1:9000/m', undefined],
  ['https://huggingface.co/org/model/resolve/main/onnx/model.onnx', undefined],
  ['https://huggingface.co/org/model/blob/main/onnx/model.onnx', /resolve/],
  ['https://user:secret@host/m', /name or password/],
  ['s3://bucket/key', /does not begin with https/],
  ['file:///etc/passwd', /does not begin with https/],
  ['model.onnx', /is not a URL/],
  [`https://host/${'a'.repeat(5000)}`, /more than 4096/],
] as const) {
  test(`${url.slice(0, 60)} ${problem === undefined ? 'may' : 'may not'} be a source`, () => {
    if (problem === undefined) assert.equal(weightUrlProblem(url), undefined);
    else assert.match(weightUrlProblem(url) ?? '', problem);
  });
}

test('of a URL neither query nor password nor fragment is shown', () => {
  assert.equal(shownUrl('https://user:secret@host:8443/a/b?sig=secret#secret'), 'https://host:8443/a/b?…');
  assert.equal(shownUrl('https://host/a'), 'https://host/a');
  assert.equal(shownUrl('secret'), '(not a URL)');
});
