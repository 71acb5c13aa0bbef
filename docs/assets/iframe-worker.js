// Browsers start no workers for a page that was opened from a folder (file://). The search of the site is a worker, so it runs in a
// hidden frame there. MkDocs Material would load a library for this from another server.
if (location.protocol === "file:") {
  window.Worker = class IFrameWorker extends EventTarget {
    #waiting = [] // messages from before the script of the worker was loaded; null afterwards
    #window

    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.#window = frame.contentWindow
      this.#window.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = frame.contentDocument.createElement("script")
      script.src = url
      script.onload = () => {
        const waiting = this.#waiting
        this.#waiting = null
        waiting.forEach((data) => this.postMessage(data))
      }
      frame.contentDocument.body.append(script)
    }

    postMessage(data) {
      if (this.#waiting) this.#waiting.push(data)
      else this.#window.dispatchEvent(new MessageEvent("message", { data }))
    }
  }
}
