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

export class TemplateTable {
  private readonly checks: InterfaceChecks;
  private readonly templates = new Map<string, RequestTemplate>();

  constructor(checks: InterfaceChecks) {
    this.checks = checks;
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
    const rows = this.checks.rowsOf(shapes);
    const requested = this.requestOutputs(outputs, binaryOutput);
    const key = `${shapes.join(';')}|${requested.map((output) => (output.binary ? -1 - output.index : output.index)).join()}`;
    let template = this.templates.get(key);
    if (template === undefined) {
      template = makeTemplate(rows, shapes, inputBytes, requested);
      if (this.templates.size === TEMPLATES_MAX) this.templates.delete(this.templates.keys().next().value!);
      this.templates.set(key, template);
    }
    return template;
  }

  private requestOutputs(outputs: readonly OutputDraft[], binaryOutput: boolean): OutputRequest[] {
    const specs = this.checks.model.signature.outputs;
    const requested: OutputRequest[] =
      outputs.length === 0
        ? specs.map((_, index) => ({ index, binary: binaryOutput }))
        : outputs.map(({ index, binary }) => ({ index, binary: binary ?? binaryOutput }));
    for (const { index, binary } of requested) {
      const { name, datatype } = specs[index]!;
      if (binary || datatypeInfo(datatype).json) continue;
      throw new BatchportError(
        'BAD_TENSOR',
        `output '${name}' is ${datatype}, which has no JSON form; ask for it in binary ("binary_data": true)`,
      );
    }
    return requested;
  }
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
  return {
    rows: whole ? 1 : rows,
    whole,
    shapes: keyed,
    inputBytes,
    outputs,
    shapeKey: `${whole ? 'whole' : 'rows'}|${keyed.join(';')}|${wanted.join()}`,
  };
}
