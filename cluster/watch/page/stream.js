// What the server sends as it happens.

/** The server-sent events of a stream as [name, data]; EventSource cannot send the token. */
export async function* messages(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    const parts = text.split("\n\n");
    text = parts.pop();
    for (const part of parts) {
      const [, name, data] = part.match(/^event: (\w+)\ndata: (.*)$/s) ?? [];
      if (name) yield [name, JSON.parse(data)];
    }
  }
}

/** A topic in a path of the admin interface: tenant, namespace and name, which two dots join. */
export function pathOf(topic) {
  const parts = topic.split("..");
  return (parts.length === 3 ? parts : ["public", "default", topic]).map(encodeURIComponent).join("/");
}
