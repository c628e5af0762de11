/**
 * Turns the body of an inference request into a `BoundRequest` for one model version, or says what is wrong with it.
 *
 * One decoder per model version and process; it keeps templates, and the headers of requests that were accepted, both bounded. Calls do
 * not overlap.
 *
 *     body ─ header length 0 ──────▶ raw-request
 *          ─ header seen before ───▶ header-memo: views into the body, no parse
 *          ─ anything else ────────▶ request-reader → RequestDraft → bind: binary sizes → template-table
 *     gRPC message ────────────────▶ grpc/infer-binder → template-table
 *
 * The reading, which takes nearly all the time where JSON is large, needs nothing of a decoder: it may be done elsewhere, and its draft be bound here.
 */
import { BatchportError } from '../config/errors.ts';
import { checkContent, checkDeclaredSize, contentMatters } from './binary-input.ts';
import type { BoundRequest } from './bound-request.ts';
import { bindInferMessage } from './grpc/infer-binder.ts';
import type { InferMessage } from './grpc/infer-message.ts';
import { type ContentCheck, type HeaderMeaning, HeaderMemo, leadingId, leadingIdEnd } from './header-memo.ts';
import type { InputDraft } from './input-reader.ts';
import { JsonCursor } from './json-cursor.ts';
import { InterfaceChecks, type ModelInterface, type RequestLimits } from './model-interface.ts';
import { bindRawRequest } from './raw-request.ts';
import { type OutputDraft, type RequestDraft, readRequest } from './request-reader.ts';
import { NO_SHARED_MEMORY, type SharedMemory } from './shared-memory.ts';
import { bindShared } from './shared-tensors.ts';
import { TemplateTable } from './template-table.ts';

export type { ModelInterface, RequestLimits } from './model-interface.ts';

const NO_BYTES = Buffer.alloc(0);

export class RequestDecoder {
  readonly model: ModelInterface;
  readonly limits: RequestLimits;
  private readonly checks: InterfaceChecks;
  private readonly templates: TemplateTable;
  private readonly memo = new HeaderMemo();
  private readonly sharedMemory: SharedMemory;

  /** @param sharedMemory where tensors are that are not in the request. */
  constructor(model: ModelInterface, limits: RequestLimits, sharedMemory: SharedMemory = NO_SHARED_MEMORY) {
    this.model = model;
    this.limits = limits;
    this.sharedMemory = sharedMemory;
    this.checks = new InterfaceChecks(model, limits);
    this.templates = new TemplateTable(this.checks);
  }

  /**
   * @param body after decompression. The result may hold views into it; it must not change while they are in use.
   * @param headerLength as `parseInferenceHeaderLength` gives it: at most `body.length`, undefined when the whole body is JSON.
   * @throws BAD_REQUEST, BAD_TENSOR
   */
  decode(body: Buffer, headerLength: number | undefined): BoundRequest {
    if (headerLength === undefined) return this.bind(this.read(body), body, undefined, 0);
    if (headerLength === 0) return bindRawRequest(body, this.checks, this.templates);
    const keyStart = leadingIdEnd(body, headerLength);
    const meaning = this.memo.find(body, keyStart, headerLength);
    if (meaning === undefined)
      return this.bind(this.read(body.subarray(0, headerLength)), body, headerLength, keyStart);
    return this.bindMeaning(meaning, leadingId(body, keyStart), body, headerLength);
  }

  /**
   * The same for a request that came over gRPC.
   *
   * @throws BAD_REQUEST, BAD_TENSOR
   */
  bindMessage(message: InferMessage): BoundRequest {
    return bindInferMessage(message, this.checks, this.templates, this.sharedMemory);
  }

  /**
   * A request that is nothing but the one element of a BYTES input, and wants its answer in JSON.
   *
   * @param body copied.
   * @throws BAD_TENSOR
   */
  bindPayload(body: Buffer): BoundRequest {
    return bindRawRequest(body, this.checks, this.templates, false);
  }

  /**
   * A request whose tensors are there already.
   *
   * @param tensors of the model's inputs, in their order, with full shapes.
   * @param about the rest of it.
   * @throws BAD_TENSOR
   */
  bindTensors(
    tensors: readonly { readonly shape: readonly number[]; readonly data: Uint8Array }[],
    outputs: readonly OutputDraft[],
    about: Pick<BoundRequest, 'id' | 'timeoutUs' | 'priority'>,
  ): BoundRequest {
    const { inputs } = this.model.signature;
    const shapes = tensors.map(({ shape }, n) => this.checks.fitShape(inputs[n]!, shape));
    const inputBytes = inputs.map((spec, n) => this.checks.sizeOf(spec, shapes[n]!).bytes);
    const template = this.templates.templateOf(shapes, inputBytes, outputs, true);
    const { id, timeoutUs, priority } = about;
    return { template, id, inputs: tensors.map(({ data }) => data), timeoutUs, priority };
  }

  /** Binds a request of which every input is binary. */
  private bindMeaning(
    meaning: HeaderMeaning,
    id: string | undefined,
    body: Buffer,
    headerLength: number,
  ): BoundRequest {
    const { template, offsets, lengths, timeoutUs, priority } = meaning;
    if (meaning.binaryBytes !== body.length - headerLength)
      this.failSize(meaning.binaryBytes, body.length - headerLength);
    const inputs: Buffer[] = [];
    for (let i = 0; i < offsets.length; i++) {
      const start = headerLength + offsets[i]!;
      inputs.push(body.subarray(start, start + lengths[i]!));
    }
    for (const check of meaning.contentChecks) checkContent(check.spec, check.count, inputs[check.index]!);
    return { template, id, inputs, timeoutUs, priority };
  }

  private read(json: Buffer): RequestDraft {
    return readRequest(new JsonCursor(json), this.checks);
  }

  /**
   * The request of a body whose JSON has been read by `readRequest` against the same model and limits. What comes out, or is thrown, is what `decode` gives for
   * the body.
   *
   * @param body what is behind the JSON has to be there, and the JSON before it; where the whole body is JSON it is not looked at any more and may be empty.
   * @param headerLength greater than 0, or undefined when the whole body is JSON.
   * @throws BAD_REQUEST, BAD_TENSOR
   */
  bindDraft(draft: RequestDraft, body: Buffer, headerLength: number | undefined): BoundRequest {
    return this.bind(draft, body, headerLength, headerLength === undefined ? 0 : leadingIdEnd(body, headerLength));
  }

  private bind(draft: RequestDraft, body: Buffer, headerLength: number | undefined, keyStart: number): BoundRequest {
    const jsonBytes = headerLength ?? body.length;
    const shapes: (readonly number[])[] = [];
    const inputBytes: number[] = [];
    const byIndex: (InputDraft | undefined)[] = this.checks.model.signature.inputs.map(() => undefined);
    for (const input of draft.inputs) byIndex[input.index] = input;
    this.checks.checkComplete(byIndex);
    for (const input of byIndex) {
      shapes.push(input!.shape);
      inputBytes.push(input!.bytes);
    }
    const { timeoutUs, priority, binaryOutput } = draft.parameters;
    const template = this.templates.templateOf(shapes, inputBytes, draft.outputs, binaryOutput ?? false);
    const sections = this.locate(draft, headerLength !== undefined, body.length - jsonBytes);
    const binary = draft.inputs.filter((input) => input.binaryBytes >= 0);
    const shared = bindShared(byIndex as InputDraft[], draft.outputs, this.checks, this.sharedMemory);
    if (binary.length === draft.inputs.length && headerLength !== undefined && shared === undefined) {
      const meaning: HeaderMeaning = {
        template,
        timeoutUs,
        priority,
        offsets: sections,
        lengths: byIndex.map((input) => input!.binaryBytes),
        binaryBytes: body.length - jsonBytes,
        contentChecks: binary.filter((input) => contentMatters(input.spec)).map(contentCheckOf),
      };
      const request = this.bindMeaning(meaning, draft.id, body, headerLength);
      // With an id that is not leading and plain, the next header will differ: there is nothing to remember.
      if (keyStart > 0 || draft.id === undefined) this.memo.add(body, keyStart, headerLength, meaning);
      return request;
    }
    const inputs = byIndex.map((input, index) => {
      if (input!.data !== undefined) return input!.data;
      if (input!.shared !== undefined) return NO_BYTES;
      const start = jsonBytes + sections[index]!;
      const data = body.subarray(start, start + input!.binaryBytes);
      checkContent(input!.spec, input!.count, data);
      return data;
    });
    const request = { template, id: draft.id, inputs, timeoutUs, priority };
    return shared === undefined ? request : { ...request, shared: shared(inputs) };
  }

  /**
   * Where the tensor of each signature input begins behind the JSON, after a check that declared, expected and real sizes agree.
   *
   * @param available bytes behind the JSON.
   * @returns offsets in signature order; 0 for an input that is not there.
   */
  private locate(draft: RequestDraft, hasHeader: boolean, available: number): number[] {
    const offsets: number[] = this.checks.model.signature.inputs.map(() => 0);
    let at = 0;
    for (const input of draft.inputs) {
      if (input.binaryBytes < 0) continue;
      if (!hasHeader) {
        throw new BatchportError(
          'BAD_REQUEST',
          `input '${input.spec.name}' has 'binary_data_size', but the request has no Inference-Header-Content-Length header to say where its JSON ends`,
        );
      }
      checkDeclaredSize(this.checks, input.spec, input.bytes, input.binaryBytes);
      if (input.binaryBytes > available - at) {
        throw new BatchportError(
          'BAD_TENSOR',
          `unexpected size for input '${input.spec.name}', expecting ${input.binaryBytes - (available - at)} additional bytes for model '${this.checks.model.name}'`,
        );
      }
      offsets[input.index] = at;
      at += input.binaryBytes;
    }
    if (at < available) this.failSize(at, available);
    return offsets;
  }

  /** The bytes behind a header are not the ones it announces. */
  private failSize(expected: number, got: number): never {
    const model = this.checks.model.name;
    throw new BatchportError(
      'BAD_TENSOR',
      got > expected
        ? `unexpected additional input data for model '${model}': expected ${expected} bytes behind the JSON, got ${got}`
        : `unexpected size for the binary inputs of model '${model}', expecting ${expected - got} additional bytes: expected ${expected} bytes behind the JSON, got ${got}`,
    );
  }
}

function contentCheckOf(input: InputDraft): ContentCheck {
  return { index: input.index, spec: input.spec, count: input.count };
}
