/**
 * A model's tensors as the TypeScript interface that `batchport/client` takes: see src/client/model-types.ts. Names from the model are string literals, never code.
 */
import { basename } from 'node:path';
import type { ModelSignature, TensorSpec } from '../tensor/signature.ts';

/** @param file whose name gives the interface its own. */
export function modelTypesText(file: string, { inputs, outputs }: ModelSignature): string {
  return [
    `/** The tensors of ${commented(basename(file))}, for \`client.infer<${interfaceName(file)}>(…)\` of batchport/client. */`,
    `export interface ${interfaceName(file)} {`,
    ...members('inputs', inputs),
    ...members('outputs', outputs),
    '}',
    '',
  ].join('\n');
}

function members(title: string, tensors: readonly TensorSpec[]): string[] {
  const lines = tensors.flatMap(({ name, datatype, shape, symbols }) => {
    const dims = shape.map((dimension, n) => (dimension === -1 ? symbols[n] || '?' : String(dimension)));
    return [`    /** ${commented(`[${dims.join(', ')}]`)} */`, `    ${JSON.stringify(name)}: '${datatype}';`];
  });
  return [`  ${title}: {`, ...lines, '  };'];
}

/** Text that ends no comment, and stays in its line. */
function commented(text: string): string {
  return text.replaceAll('*/', '* /').replace(/[\p{Cc}\u2028\u2029]/gu, ' ');
}

/** `ocr-recognizer.v2.onnx` → `OcrRecognizerV2`. */
function interfaceName(file: string): string {
  const words = basename(file)
    .replace(/\.onnx$/i, '')
    .split(/[^A-Za-z0-9]+/)
    .filter((word) => word !== '');
  const name = words.map((word) => word[0]!.toUpperCase() + word.slice(1)).join('');
  return /^[A-Za-z]/.test(name) ? name : `Model${name}`;
}
