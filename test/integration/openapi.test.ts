/**
 * The OpenAPI document (`/v2/openapi.json`): every route of the server is in it, what it refers to is there, its examples are answered, and it follows the models that are
 * loaded.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { ENDPOINTS } from '../../src/ingress/router.ts';
import { assertDone, ControlledServer } from '../support/control.ts';
import { get, json, jsonBody, send } from '../support/exchange.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';

type Tree = { readonly [key: string]: Tree } & { readonly $ref?: string; readonly operationId?: string };

const repository = makeRepository(
  { after },
  {
    simple: {},
    'odd {name} é%': { fixture: 'multitype' },
    bytes_column: {},
    rows_fp16: {},
    late: { fixture: 'simple' },
  },
);
const loaded = ['simple', 'odd {name} é%', 'bytes_column', 'rows_fp16'];
const args = [
  '--system-shared-memory',
  '--model-control-mode',
  'explicit',
  ...loaded.flatMap((name) => ['--load-model', name]),
];
const server = launchServer({ after }, { repository: repository.dir, args });
const plain = launchServer({ after }, { repository: makeRepository({ after }, ['simple']).dir });
const control = new ControlledServer(server, repository);

before(async () => {
  await Promise.all([server.ready(), plain.ready()]);
});

const document = async (url = server.url) => json(await get(url, '/v2/openapi.json')) as unknown as Tree;

function* nodes(tree: unknown): Generator<Tree> {
  if (typeof tree !== 'object' || tree === null) return;
  yield tree as Tree;
  for (const child of Object.values(tree)) yield* nodes(child);
}

test('every route of the server is in the document', async () => {
  const paths = Object.keys((await document()).paths!).map((path) =>
    path
      .replace('/v2/models/simple', '/v2/models/:m')
      .replace(/\{(model|region)\}/, (_, of) => (of === 'model' ? ':m' : ':r')),
  );
  for (const { path } of Object.values(ENDPOINTS)) {
    // Of GPUs there are no regions.
    if (path[0 as never] === 'cudasharedmemory') continue;
    assert(paths.includes(['/v2', ...path].join('/')), `/v2/${path.join('/')} is not in it`);
  }
  const less = Object.keys((await document(plain.url)).paths!);
  assert(!less.some((path) => /systemsharedmemory|\/load$/.test(path)), 'what is off is in it');
});

test('what it refers to is there, and operations have names of their own', async () => {
  const tree = await document();
  const names: string[] = [];
  for (const { $ref, operationId } of nodes(tree)) {
    if (typeof operationId === 'string') names.push(operationId);
    if (typeof $ref !== 'string') continue;
    let target: Tree | undefined = tree;
    for (const part of $ref.replace('#/', '').split('/')) target = target?.[part];
    assert(target !== undefined, `${$ref} is not there`);
  }
  assert(names.length > 30);
  assert.equal(new Set(names).size, names.length, 'a name of an operation occurs twice');
});

test('its examples are answered, under the paths that it has', async () => {
  let examples = 0;
  for (const [path, item] of Object.entries((await document()).paths!)) {
    const example = (item as Tree).post?.requestBody?.content?.['application/json']?.example;
    if (example === undefined) continue;
    const answer = await send(server.url, path.replace('{version}', '1'), jsonBody(JSON.stringify(example)));
    assert.equal(answer.status, 200, `${path}: ${answer.body}`);
    examples++;
  }
  // FP16 has no form in JSON.
  assert.equal(examples, 2 * 3);
});

test('it follows the models that are loaded', async () => {
  const has = async () => Object.hasOwn((await document()).paths!, '/v2/models/late/infer');
  assert.equal(await has(), false);
  assertDone(await control.load('late'));
  assert.equal(await has(), true);
  assertDone(await control.unload('late'));
  assert.equal(await has(), false);
});
