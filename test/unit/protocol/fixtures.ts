/** Models and helpers that the protocol's tests share. */
import assert from 'node:assert/strict';
import { BatchportError, type ErrorCode } from '../../../src/config/errors.ts';
import type { BoundRequest } from '../../../src/protocol/bound-request.ts';
import { type ModelInterface, RequestDecoder, type RequestLimits } from '../../../src/protocol/request-decoder.ts';
import type { Datatype } from '../../../src/tensor/datatype.ts';
import type { SkippedOutput, TensorSpec } from '../../../src/tensor/signature.ts';

export const LIMITS: RequestLimits = { maxElements: 1 << 20, maxTensorBytes: 1 << 22 };

export function tensor(name: string, datatype: Datatype, shape: readonly number[]): TensorSpec {
  return { name, datatype, shape, symbols: shape.map(() => '') };
}

export function model(
  name: string,
  inputs: readonly TensorSpec[],
  outputs: readonly TensorSpec[],
  options: { maxBatchSize?: number; maxRows?: number; skippedOutputs?: readonly SkippedOutput[] } = {},
): ModelInterface {
  const maxBatchSize = options.maxBatchSize ?? 0;
  return {
    name,
    version: '1',
    signature: {
      inputs,
      outputs,
      skippedOutputs: options.skippedOutputs ?? [],
      metadata: { producer: '', graphName: '', description: '', version: '', custom: {} },
    },
    batching: maxBatchSize > 0,
    maxBatchSize,
    maxRows: options.maxRows ?? maxBatchSize,
  };
}

/** Two INT32 inputs of 16, rows up to 8. */
export const SIMPLE = model(
  'simple',
  [tensor('INPUT0', 'INT32', [-1, 16]), tensor('INPUT1', 'INT32', [-1, 16])],
  [tensor('OUTPUT0', 'INT32', [-1, 16]), tensor('OUTPUT1', 'INT32', [-1, 16])],
  { maxBatchSize: 8 },
);

/** `x[n] → y[n]`, not batched. */
export function identity(datatype: Datatype, shape: readonly number[] = [-1]): ModelInterface {
  return model(`id${datatype}`, [tensor('x', datatype, shape)], [tensor('y', datatype, shape)]);
}

export function decodeText(target: ModelInterface, text: string): BoundRequest {
  return new RequestDecoder(target, LIMITS).decode(Buffer.from(text), undefined);
}

/** Decodes one flat or nested JSON `data` for an identity model. */
export function decodeData(
  datatype: Datatype,
  data: string,
  shape: readonly number[],
  spec?: readonly number[],
): Buffer {
  const text = `{"inputs":[{"name":"x","shape":${JSON.stringify(shape)},"datatype":"${datatype}","data":${data}}]}`;
  const { inputs } = decodeText(identity(datatype, spec), text);
  return Buffer.from(inputs[0]!);
}

/** A JSON header and the bytes behind it. */
export function binaryBody(header: unknown, ...tensors: Uint8Array[]): { body: Buffer; headerLength: number } {
  const json = Buffer.from(typeof header === 'string' ? header : JSON.stringify(header));
  return { body: Buffer.concat([json, ...tensors]), headerLength: json.length };
}

/** Asserts that `act` is refused with a message that has every fragment. */
export function assertRefused(act: () => unknown, code: ErrorCode, ...fragments: (string | RegExp)[]): void {
  assert.throws(act, (error: unknown) => {
    if (!(error instanceof BatchportError)) throw error;
    assert.equal(error.code, code, error.message);
    for (const fragment of fragments) {
      if (typeof fragment === 'string')
        assert.ok(error.message.includes(fragment), `${error.message}\n  lacks: ${fragment}`);
      else assert.match(error.message, fragment);
    }
    return true;
  });
}
