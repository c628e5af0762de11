/**
 * Configurations that are cut off, or of which a byte is lost or another one: whatever is left, the answer is a configuration, or faults that are a line each and
 * have a place in the text. Every prefix is tried, and every byte.
 */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import {
  formatModelConfigProblem,
  type ModelConfigResult,
  parseModelConfig,
} from '../../../src/config/model-config.ts';
import { parseTritonConfig } from '../../../src/config/triton-config.ts';

const JSON_TEXT = `{
  "max_batch_size": 32, "instances": {"min": 1, "max": 2},
  "devices": ["cpu", "cuda:0"], "slo_ms": 250,
  "queue": {"max_bytes": "64MiB"}, "version_policy": {"specific": [3, "5"]},
  "warmup": [{"data": "random", "inputs": [{"name": "ids\\u00e9", "dims": [128]}]}, {"request": "one.json"}],
  "runtime": {"session": {"session.intra_op.allow_spinning": "0"}}
}`;

const PBTXT = `# Of a network
name: "net" backend: "onnxruntime" max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 3, -1 ] }, { name: 'y\\n' data_type: TYPE_STRING dims: 1 } ]
instance_group < count: 2 kind: KIND_GPU gpus: [ 0, 1 ] >;
dynamic_batching { max_queue_delay_microseconds: 100 preferred_batch_size: [ 4, 8 ] }
parameters { key: "intra_op_thread_count" value: { string_value: "2" } }
version_policy: { specific: { versions: [1, 3] } }
`;

const STRANGE = ['', '"', '{', '}', ']', ',', ':', '\\', '\n', '\0', '-', 'é', '\ufeff'].map((text) =>
  Buffer.from(text),
);
STRANGE.push(Buffer.from([0xff]));

for (const [file, text, parse] of [
  ['config.json', JSON_TEXT, parseModelConfig],
  ['config.pbtxt', PBTXT, (bytes: Uint8Array) => parseTritonConfig(bytes, 'net').result],
] as const) {
  const whole = Buffer.from(text);
  const check = (bytes: Buffer): ModelConfigResult => {
    const result = parse(bytes);
    if (result.ok) return result;
    const lines = bytes.toString('latin1').split('\n').length;
    assert(result.problems.length > 0);
    for (const problem of result.problems) {
      const told = formatModelConfigProblem(file, problem);
      assert(told.length < 500 && /^[^\p{Cc}]+$/u.test(told), `${JSON.stringify(told)} is not a line`);
      assert(problem.line >= 1 && problem.line <= lines && problem.column >= 1, told);
    }
    return result;
  };

  describe(file, () => {
    test('is good as a whole', () => assert(check(whole).ok));

    test('cut off at any place', () => {
      const good = Array.from({ length: whole.length }, (_, n) => n).filter((n) => check(whole.subarray(0, n)).ok);
      // Half an object is none; of protobuf's text some beginnings are whole texts, such as the empty one.
      assert(file === 'config.json' ? good.length === 0 : good.includes(0) && good.length < whole.length / 3);
    });

    test('with a byte lost, or another one in its place', () => {
      let bad = 0;
      for (let at = 0; at < whole.length; at++) {
        for (const strange of STRANGE) {
          const bytes = Buffer.concat([whole.subarray(0, at), strange, whole.subarray(at + 1)]);
          if (!check(bytes).ok) bad++;
        }
      }
      assert(bad > (whole.length * STRANGE.length) / 2, `only ${bad} are found bad`);
    });
  });
}
