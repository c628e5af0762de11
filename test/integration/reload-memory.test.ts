/** A model that takes more than half of a device's memory: a new file does not fit beside the old one, which is said, with what can be done; and that can be done. */
import assert from 'node:assert/strict';
import fs from 'node:fs';
import { after, before, test } from 'node:test';
import { assertDone, ControlledServer } from '../support/control.ts';
import { assertRefused, binaryRequest, infer } from '../support/exchange.ts';
import { makeRepository } from '../support/repository.ts';
import { launchServer } from '../support/server.ts';
import { tensor } from '../support/tensor.ts';

/** 33 MB of weights. */
const repository = makeRepository({ after }, { big: { fixture: 'mlp_big', config: { max_batch_size: 4 } } });
const args = ['--model-control-mode', 'explicit', '--load-model', '*', '--memory-budget-bytes', '60MiB'];
const server = launchServer({ after }, { repository: repository.dir, args });
const control = new ControlledServer(server, repository);
const request = binaryRequest(new Map([['x', tensor('FP32', [1, 1024], new Float32Array(1024).fill(0.5))]]));

before(() => server.ready());

test('the load is refused with the sums and a way, and the old one goes on', async () => {
  const file = repository.path('big', '1', 'model.onnx');
  fs.utimesSync(file, 1, 1);
  const answer = await control.load('big');
  assertRefused(answer, 'BAD_REQUEST', /there is not enough memory: .* for big\/1.* unload the model and load it then/);
  assert.equal((await infer(server.url, 'big', request)).status, 200);
  assertDone(await control.unload('big'));
  assertDone(await control.load('big'));
  assert.equal((await infer(server.url, 'big', request)).status, 200);
});
