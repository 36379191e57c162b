// The same request for a shell, for Python and for JavaScript.
function python(value, indent) {
  const pad = " ".repeat(indent);
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return `[${value.map((each) => python(each, indent)).join(", ")}]`;
  if (typeof value === "object") {
    const pairs = Object.entries(value).map(([name, each]) => `${JSON.stringify(name)}: ${python(each, indent)}`);
    return `{${pairs.join(`, `)}}`;
  }
  return JSON.stringify(value);
}

export function snippets(api, request) {
  const json = JSON.stringify({ ...request, stream: true }, null, 2).replaceAll("'", "'\\''");
  const named = Object.entries(request).map(([name, value]) => `    ${name}=${python(value, 4)},`);
  return {
    curl: `curl -N ${api}/chat/completions \\\n  -H "Authorization: Bearer $HEADWAY_API_KEY" \\\n  -H "Content-Type: application/json" \\\n  -d '${json}'`,
    python: `import os\nfrom openai import OpenAI\n\nclient = OpenAI(base_url="${api}", api_key=os.environ["HEADWAY_API_KEY"])\nstream = client.chat.completions.create(\n${named.join("\n")}\n    stream=True,\n)\nfor chunk in stream:\n    print(chunk.choices[0].delta.content or "", end="")`,
    js: `import OpenAI from "openai";\n\nconst client = new OpenAI({ baseURL: "${api}", apiKey: process.env.HEADWAY_API_KEY });\nconst stream = await client.chat.completions.create(${JSON.stringify({ ...request, stream: true }, null, 2)});\nfor await (const chunk of stream) {\n  process.stdout.write(chunk.choices[0]?.delta?.content ?? "");\n}`,
  };
}
