// One streamed chat by the official SDK. Prints a JSON line: the text so far, and what was raised, if anything was.
import OpenAI from "openai";

const [baseURL, apiKey] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0, timeout: 10_000 });
const result = { text: "", finishReason: null, error: null, code: null, isApiError: false };
try {
  const stream = await client.chat.completions.create({
    model: "m",
    messages: [{ role: "user", content: "hi" }],
    stream: true,
  });
  for await (const chunk of stream) {
    result.text += chunk.choices[0]?.delta?.content ?? "";
    result.finishReason ??= chunk.choices[0]?.finish_reason ?? null;
  }
} catch (error) {
  result.error = error.message;
  result.code = error.code ?? null;
  result.isApiError = error instanceof OpenAI.APIError;
}
console.log(JSON.stringify(result));
