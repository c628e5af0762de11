/**
 * Makes request templates and hands out the same one for the same content.
 *
 * Bound: `TEMPLATES_MAX` templates are kept; the oldest goes when another is made. A template lives on with whoever holds it.
 */
import { BatchportError } from '../config/errors.ts';
import { datatypeInfo } from '../tensor/datatype.ts';
import type { OutputRequest, RequestTemplate } from './bound-request.ts';
import type { InterfaceChecks } from './model-interface.ts';
import type { OutputDraft } from './request-reader.ts';

const TEMPLATES_MAX = 256;

interface Known {
  readonly template: RequestTemplate;
  /** Full shapes. */
  readonly shapes: readonly (readonly number[])[];
}

export class TemplateTable {
  private readonly checks: InterfaceChecks;
  private readonly templates = new Map<string, Known>();
  /** The one handed out last, which spares a stream of equal requests the making of a key. */
  private latest: Known | undefined = undefined;
  /** What a request that names no outputs asks for, in JSON and in binary. */
  private readonly everyOutput: readonly [OutputDraft[], OutputDraft[]];

  constructor(checks: InterfaceChecks) {
    this.checks = checks;
    const outputs = checks.model.signature.outputs;
    this.everyOutput = [
      outputs.map((_, index) => ({ index, binary: false, classes: 0, shared: undefined })),
      outputs.map((_, index) => ({ index, binary: true, classes: 0, shared: undefined })),
    ];
  }

  /**
   * The template of a request whose inputs are all there and fit the signature.
   *
   * @param shapes full shapes, in signature order; `inputBytes` likewise, -1 for BYTES.
   * @param outputs what was asked for; empty for every output of the model.
   * @param binaryOutput form of the outputs that name none themselves.
   * @throws BAD_TENSOR
   */
  templateOf(
    shapes: readonly (readonly number[])[],
    inputBytes: readonly number[],
    outputs: readonly OutputDraft[],
    binaryOutput: boolean,
  ): RequestTemplate {
    const wanted = outputs.length > 0 ? outputs : this.everyOutput[binaryOutput ? 1 : 0];
    const { latest } = this;
    if (
      latest !== undefined &&
      sameShapes(latest.shapes, shapes) &&
      sameOutputs(latest.template.outputs, wanted, binaryOutput)
    ) {
      return latest.template;
    }
    const requested = wanted.map(({ index, binary, classes }): OutputRequest => {
      return { index, binary: binary ?? binaryOutput, classes };
    });
    const key = `${shapes.join(';')}|${requested.map(formKey).join()}`;
    let known = this.templates.get(key);
    if (known === undefined) {
      this.checkForms(requested);
      known = { template: makeTemplate(this.checks.rowsOf(shapes), shapes, inputBytes, requested), shapes };
      if (this.templates.size === TEMPLATES_MAX) this.templates.delete(this.templates.keys().next().value!);
      this.templates.set(key, known);
    }
    this.latest = known;
    return known.template;
  }

  private checkForms(requested: readonly OutputRequest[]): void {
    for (const { index, binary, classes } of requested) {
      const { name, datatype } = this.checks.model.signature.outputs[index]!;
      if (classes > 0 && datatype !== 'BYTES') continue;
      if (classes > 0) {
        throw new BatchportError(
          'BAD_TENSOR',
          `output '${name}' is BYTES, of which there are no classes; ask for it without 'classification'`,
        );
      }
      if (binary || datatypeInfo(datatype).json) continue;
      throw new BatchportError(
        'BAD_TENSOR',
        `output '${name}' is ${datatype}, which has no JSON form; ask for it in binary ("binary_data": true)`,
      );
    }
  }
}

function formKey({ index, binary, classes }: OutputRequest): string {
  return `${binary ? -1 - index : index}:${classes}`;
}

function sameShapes(a: readonly (readonly number[])[], b: readonly (readonly number[])[]): boolean {
  for (let i = 0; i < a.length; i++) {
    const left = a[i]!;
    const right = b[i]!;
    if (left.length !== right.length) return false;
    for (let d = 0; d < left.length; d++) if (left[d] !== right[d]) return false;
  }
  return true;
}

function sameOutputs(a: readonly OutputRequest[], b: readonly OutputDraft[], binaryOutput: boolean): boolean {
  if (a.length !== b.length) return false;
  for (let i = 0; i < a.length; i++) {
    const one = a[i]!;
    const other = b[i]!;
    if (one.index !== other.index || one.classes !== other.classes) return false;
    if (one.binary !== (other.binary ?? binaryOutput)) return false;
  }
  return true;
}

function makeTemplate(
  rows: number,
  shapes: readonly (readonly number[])[],
  inputBytes: readonly number[],
  outputs: readonly OutputRequest[],
): RequestTemplate {
  const whole = rows === 0;
  const keyed = whole ? shapes : shapes.map((shape) => shape.slice(1));
  const wanted = outputs.map((output) => output.index).sort((a, b) => a - b);
  const classes = outputs.filter((output) => output.classes > 0).sort((a, b) => a.index - b.index);
  return {
    rows: whole ? 1 : rows,
    whole,
    shapes: keyed,
    inputBytes,
    outputs,
    classesKey: classes.map((output) => `${output.index}:${output.classes}`).join(),
    shapeKey: `${whole ? 'whole' : 'rows'}|${keyed.join(';')}|${wanted.join()}`,
  };
}
