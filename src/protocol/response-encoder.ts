/**
 * Writes the response to an inference request: JSON, then the tensors that were asked for in binary.
 *
 * When all outputs are binary the JSON depends on the template and the output shapes only, save for the id. The last one is kept per
 * template, without its closing brace, so that an id can be put behind it; a response then is a few copies into one new buffer.
 *
 * Bound: one cached header per template that is alive, and the templates are bounded by their table.
 */
import { datatypeInfo } from '../tensor/datatype.ts';
import { elementCount, formatShape } from '../tensor/shape.ts';
import type { TensorSpec } from '../tensor/signature.ts';
import type { BoundRequest, OutputRequest, RequestTemplate } from './bound-request.ts';
import { writeJsonTensor } from './json-tensor-writer.ts';
import { JsonWriter } from './json-writer.ts';
import type { ModelInterface } from './model-interface.ts';

const CLOSE_BRACE = 0x7d;

export interface OutputTensor {
  /** Full shape, as the request's rows have it. */
  readonly shape: readonly number[];
  /** Row-major, little-endian; BYTES serialised. Only read during the call. Empty where it has been written into shared memory. */
  readonly data: Uint8Array;
  /** It has been written into shared memory, and the response describes it only. */
  readonly elsewhere?: boolean;
}

export interface EncodedResponse {
  /** For `Inference-Header-Content-Length`; undefined when the body is JSON alone. */
  readonly headerLength: number | undefined;
  readonly body: Buffer;
}

/** JSON of a response with only binary outputs, up to its closing brace. */
interface CachedHeader {
  readonly head: Buffer;
  readonly shapes: readonly (readonly number[])[];
  readonly lengths: readonly number[];
  readonly binaryBytes: number;
}

export class ResponseEncoder {
  readonly model: ModelInterface;
  private readonly outputs: readonly TensorSpec[];
  /** The same as texts of classes. */
  private readonly classOutputs: readonly TensorSpec[];
  /** JSON text up to the list of outputs. */
  private readonly opening: string;
  private readonly writer = new JsonWriter();
  private readonly headers = new WeakMap<RequestTemplate, CachedHeader>();

  constructor(model: ModelInterface) {
    this.model = model;
    this.outputs = model.signature.outputs;
    this.classOutputs = this.outputs.map((spec) => ({ ...spec, datatype: 'BYTES' }));
    this.opening = `{"model_name":${JSON.stringify(model.name)},"model_version":${JSON.stringify(model.version)},"outputs":[`;
  }

  /**
   * @param outputs one per entry of the template's outputs, in that order.
   * @throws BAD_REQUEST when a value of an output that was asked for in JSON has no JSON form
   */
  encode(request: Pick<BoundRequest, 'template' | 'id'>, outputs: readonly OutputTensor[]): EncodedResponse {
    const { template, id } = request;
    const cached = this.headers.get(template);
    const anyElsewhere = outputs.some(({ elsewhere }) => elsewhere === true);
    if (cached !== undefined && !anyElsewhere && fits(cached, outputs)) return join(cached, id, outputs);
    checkOutputs(this.outputs, template, outputs);
    if (!anyElsewhere && template.outputs.length > 0 && template.outputs.every((output) => output.binary)) {
      const header = this.makeHeader(template, outputs);
      this.headers.set(template, header);
      return join(header, id, outputs);
    }
    return this.encodeMixed(template, id, outputs);
  }

  private encodeMixed(
    template: RequestTemplate,
    id: string | undefined,
    outputs: readonly OutputTensor[],
  ): EncodedResponse {
    const { writer } = this;
    writer.reset();
    this.writeHead(template.outputs, outputs);
    if (id !== undefined) writer.writeText(idMember(id));
    writer.writeByte(CLOSE_BRACE);
    let binaryBytes = 0;
    for (let i = 0; i < outputs.length; i++) if (template.outputs[i]!.binary) binaryBytes += outputs[i]!.data.length;
    const headerLength = writer.at;
    const body = writer.take(binaryBytes);
    let at = headerLength;
    for (let i = 0; i < outputs.length; i++) {
      if (!template.outputs[i]!.binary) continue;
      body.set(outputs[i]!.data, at);
      at += outputs[i]!.data.length;
    }
    return { headerLength: binaryBytes > 0 ? headerLength : undefined, body };
  }

  private makeHeader(template: RequestTemplate, outputs: readonly OutputTensor[]): CachedHeader {
    this.writer.reset();
    this.writeHead(template.outputs, outputs);
    const lengths = outputs.map((output) => output.data.length);
    return {
      head: this.writer.take(0),
      shapes: outputs.map((output) => [...output.shape]),
      lengths,
      binaryBytes: lengths.reduce((sum, length) => sum + length, 0),
    };
  }

  /** Writes the response's JSON up to its closing brace. */
  private writeHead(requested: readonly OutputRequest[], outputs: readonly OutputTensor[]): void {
    const { writer } = this;
    writer.writeText(this.opening);
    for (let i = 0; i < outputs.length; i++) {
      const { shape, data, elsewhere } = outputs[i]!;
      const { index, classes, binary } = requested[i]!;
      const spec = (classes > 0 ? this.classOutputs : this.outputs)[index]!;
      const name = JSON.stringify(spec.name);
      writer.writeText(
        `${i > 0 ? ',' : ''}{"name":${name},"datatype":"${spec.datatype}","shape":${formatShape(shape)}`,
      );
      // Without parameters: there are clients that take any of an output's for those of binary data.
      if (elsewhere === true) writer.writeByte(CLOSE_BRACE);
      else if (binary) writer.writeText(`,"parameters":{"binary_data_size":${data.length}}}`);
      else {
        writer.writeText(',"data":');
        writeJsonTensor(writer, spec, elementCount(shape)!, data);
        writer.writeByte(CLOSE_BRACE);
      }
    }
    writer.writeText(']');
  }
}

/** Shapes and sizes come from the model's run and must agree: a reader of the response would otherwise cut it wrongly. */
export function checkOutputs(
  specs: readonly TensorSpec[],
  template: RequestTemplate,
  outputs: readonly OutputTensor[],
): void {
  if (outputs.length !== template.outputs.length) {
    throw new Error(`This is a bug: ${outputs.length} outputs for a request of ${template.outputs.length}`);
  }
  for (let i = 0; i < outputs.length; i++) {
    const { shape, data, elsewhere } = outputs[i]!;
    const { index, classes } = template.outputs[i]!;
    const { name, datatype } = specs[index]!;
    const { elementBytes } = datatypeInfo(classes > 0 ? 'BYTES' : datatype);
    const count = elementCount(shape);
    const sized = elementBytes > 0 && elsewhere !== true;
    if (count === undefined || (sized && count * elementBytes !== data.length)) {
      throw new Error(`This is a bug: output '${name}' has ${data.length} bytes for the shape ${formatShape(shape)}`);
    }
  }
}

function fits(cached: CachedHeader, outputs: readonly OutputTensor[]): boolean {
  const { shapes, lengths } = cached;
  if (outputs.length !== shapes.length) return false;
  for (let i = 0; i < shapes.length; i++) {
    const output = outputs[i]!;
    const shape = shapes[i]!;
    if (output.data.length !== lengths[i] || output.shape.length !== shape.length) return false;
    for (let d = 0; d < shape.length; d++) if (output.shape[d] !== shape[d]) return false;
  }
  return true;
}

function join(header: CachedHeader, id: string | undefined, outputs: readonly OutputTensor[]): EncodedResponse {
  const { head, binaryBytes } = header;
  const idText = id === undefined ? '' : idMember(id);
  const idBytes = idText === '' ? 0 : Buffer.byteLength(idText);
  const headerLength = head.length + idBytes + 1;
  const body = Buffer.allocUnsafe(headerLength + binaryBytes);
  body.set(head, 0);
  if (idBytes > 0) body.write(idText, head.length);
  body[headerLength - 1] = CLOSE_BRACE;
  let at = headerLength;
  for (let i = 0; i < outputs.length; i++) {
    const { data } = outputs[i]!;
    body.set(data, at);
    at += data.length;
  }
  // A zero-size output keeps its binary_data_size, but alone it makes no binary response.
  return { headerLength: binaryBytes > 0 ? headerLength : undefined, body };
}

function idMember(id: string): string {
  return `,"id":${JSON.stringify(id)}`;
}
