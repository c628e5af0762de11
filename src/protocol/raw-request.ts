/**
 * The raw binary request: a body that is nothing but the tensor of a model's only input (`Inference-Header-Content-Length: 0`).
 *
 * The shape is worked out from the size: at most one dimension may be variable, the batch dimension not counted, which is 1. A BYTES
 * input is one element, and the body is that element without its length.
 * Source: the binary tensor data extension of the protocol.
 */
import { BatchportError } from '../config/errors.ts';
import { encodeBytesTensor } from '../tensor/bytes-tensor.ts';
import { datatypeInfo } from '../tensor/datatype.ts';
import { formatShape } from '../tensor/shape.ts';
import type { TensorSpec } from '../tensor/signature.ts';
import { checkContent, checkDeclaredSize } from './binary-input.ts';
import type { BoundRequest } from './bound-request.ts';
import type { InterfaceChecks } from './model-interface.ts';
import type { TemplateTable } from './template-table.ts';

/** @param binaryOutput form of the answer. @throws BAD_TENSOR */
export function bindRawRequest(
  body: Buffer,
  checks: InterfaceChecks,
  templates: TemplateTable,
  binaryOutput = true,
): BoundRequest {
  const { signature } = checks.model;
  const spec = signature.inputs[0];
  if (spec === undefined || signature.inputs.length > 1) {
    return refuse(checks, `it has ${signature.inputs.length} inputs, not one`);
  }
  const shape = rawShape(spec, body.length, checks);
  const { count, bytes } = checks.sizeOf(spec, shape);
  let data: Uint8Array = body;
  if (spec.datatype === 'BYTES') {
    checks.checkBytes(spec, body.length);
    data = encodeBytesTensor([body]);
  } else {
    checkDeclaredSize(checks, spec, bytes, body.length);
    checkContent(spec, count, body);
  }
  const template = templates.templateOf([shape], [bytes], [], binaryOutput);
  return { template, id: undefined, inputs: [data], timeoutUs: undefined, priority: undefined };
}

function rawShape(spec: TensorSpec, bodyBytes: number, checks: InterfaceChecks): number[] {
  const shape = [...spec.shape];
  if (checks.model.batching) shape[0] = 1;
  const variable = shape.indexOf(-1);
  if (shape.indexOf(-1, variable + 1) !== -1 && variable !== -1) {
    refuse(checks, `input '${spec.name}' has more than one variable dimension: ${formatShape(spec.shape)}`);
  }
  if (spec.datatype === 'BYTES') {
    // One element, however many there may be.
    if (variable !== -1) shape[variable] = 1;
    if (shape.some((dim) => dim !== 1)) {
      refuse(checks, `its input '${spec.name}' is BYTES and must have shape [1], not ${formatShape(spec.shape)}`);
    }
    return shape;
  }
  if (variable === -1) return shape;
  let stepBytes = datatypeInfo(spec.datatype).elementBytes;
  for (const dim of shape) if (dim !== -1) stepBytes *= dim;
  if (stepBytes === 0 ? bodyBytes > 0 : bodyBytes % stepBytes !== 0) {
    throw new BatchportError(
      'BAD_TENSOR',
      `input byte size mismatch for input '${spec.name}' for model '${checks.model.name}': expected a multiple of ${stepBytes} bytes for the shape ${formatShape(spec.shape)}, got ${bodyBytes}`,
    );
  }
  shape[variable] = stepBytes === 0 ? 0 : bodyBytes / stepBytes;
  return shape;
}

function refuse(checks: InterfaceChecks, why: string): never {
  throw new BatchportError(
    'BAD_TENSOR',
    `model '${checks.model.name}' cannot take a raw binary request: ${why}; send a JSON header with the shape`,
  );
}
