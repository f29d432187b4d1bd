([names, maxPrompt], values) => {
  // The address carries every control, so that a link gives the run again. Foreign parameters stay.
  const query = new URLSearchParams(location.search);
  names.forEach((name, i) => {
    const value = typeof values[i] === "boolean" ? Number(values[i]) : values[i];
    const tooLong = name === "prompt" && value?.length > maxPrompt;
    if (value === null || value === undefined || tooLong) query.delete(name);
    else query.set(name, value);
    // Whoever opens the link is told that its prompt is missing.
    if (tooLong) query.set("long", 1);
    else if (name === "prompt") query.delete("long");
  });
  try {
    history.replaceState(history.state, "", `${location.pathname}?${query}${location.hash}`);
  } catch {
    // Safari allows a hundred of these in half a minute; the next change writes it.
  }
}
