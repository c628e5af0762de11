/** The first look at a model file, and names of models. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { modelHeadProblem } from '../../../src/repository/model-file.ts';
import { modelNameProblem } from '../../../src/repository/model-name.ts';
import { FIXTURE_NAMES, modelFiles } from '../../support/models.ts';
import { MODEL_BYTES } from './tree.ts';

for (const [what, head, problem] of [
  ['no bytes', '', /^is empty$/],
  ['a Git-LFS pointer', 'version https://git-lfs.github.com/spec/v1\noid', /Git-LFS pointer/],
  ['an HTML page', '<!DOCTYPE html><html>', /HTML or XML page/],
  ['an HTML page after blanks', '\r\n\t <HTML>', /HTML or XML page/],
  ['an XML page with a byte order mark', '\ufeff<?xml version="1.0"?>', /HTML or XML page/],
  ['a JSON answer', '{"error":"not found"}', /JSON text/],
  ['a JSON list', ' [1]', /JSON text/],
  ['a ZIP archive', 'PK\x03\x04\x14', /ZIP archive/],
  ['a GGUF model', 'GGUF\x03', /GGUF/],
] as const) {
  test(`${what} is told from a model by its first bytes`, () => {
    const bytes = Buffer.from(head);
    assert.match(modelHeadProblem(bytes, bytes.byteLength) ?? 'no problem', problem);
  });
}

test('a gzip file is told from a model by its first bytes', () => {
  assert.match(modelHeadProblem(Buffer.from([0x1f, 0x8b, 0x08, 0x00]), 4) ?? '', /gzip/);
});

test('the beginning of a model and bytes that tell nothing are left for ONNX Runtime to judge', () => {
  for (const bytes of [MODEL_BYTES, Buffer.from([0]), Buffer.from('hello'), Buffer.from('P'), Buffer.from('   ')]) {
    assert.equal(modelHeadProblem(bytes, bytes.byteLength), undefined);
  }
});

test('no real model is refused', () => {
  for (const name of FIXTURE_NAMES) {
    const { model } = modelFiles(name);
    assert.equal(modelHeadProblem(model.subarray(0, 256), model.byteLength), undefined, name);
  }
});

for (const [name, problem] of [
  ['a', undefined],
  ['example ż 대 김', undefined],
  ['a.b-c_d', undefined],
  [' lead', undefined],
  ['ż'.repeat(127), undefined],
  ['ż'.repeat(128), 'is 256 bytes long; 255 are allowed'],
  ['', 'is empty'],
  ['.', 'starts with a dot'],
  ['..', 'starts with a dot'],
  ['.hidden', 'starts with a dot'],
  ['a/b', 'contains "/"'],
  ['a\0b', 'contains a control character'],
  ['a\nb', 'contains a control character'],
  ['a\u007fb', 'contains a control character'],
  ['a\u0085b', 'contains a control character'],
  ['a\u2028b', 'contains a control character'],
  ['a\ufffdb', 'is not valid UTF-8'],
  ['a\ud800b', 'is not valid UTF-8'],
] as const) {
  test(`the model name ${JSON.stringify(name.slice(0, 20))} ${problem ?? 'is allowed'}`, () => {
    assert.equal(modelNameProblem(name), problem);
  });
}
