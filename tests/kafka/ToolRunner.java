import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.security.Permission;
import java.security.Policy;
import java.security.ProtectionDomain;
import java.util.HashMap;
import java.util.Map;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's command line tools one after the other in one JVM, because a start of Java takes longer than most of their work.
 *
 * It reads lines of JSON: {"tool": class, "args": [...], "input": text, "seconds": n} runs a tool and answers with its exit code
 * and outputs; with "background": name it answers at once, and {"wait": name} answers later. Each tool has streams of its own,
 * which its threads inherit.
 */
public class ToolRunner {
    static final ObjectMapper JSON = new ObjectMapper();
    static final InheritableThreadLocal<Run> CURRENT = new InheritableThreadLocal<>();

    static class Ended extends SecurityException {
        Ended(int code) {
            super("exit " + code);
        }
    }

    static class Run extends Thread {
        final ByteArrayOutputStream out = new ByteArrayOutputStream();
        final ByteArrayOutputStream err = new ByteArrayOutputStream();
        final InputStream in;
        final String tool;
        final String[] args;
        volatile Integer code;

        Run(JsonNode request) {
            tool = request.get("tool").asText();
            args = JSON.convertValue(request.get("args"), String[].class);
            in = new ByteArrayInputStream(request.path("input").asText("").getBytes(StandardCharsets.UTF_8));
            setDaemon(true);
        }

        @Override
        public void run() {
            CURRENT.set(this);
            try {
                Class.forName(tool).getMethod("main", String[].class).invoke(null, (Object) args);
            } catch (InvocationTargetException e) {
                if (code == null) {
                    e.getCause().printStackTrace();
                }
                ended(1);
            } catch (Throwable e) {
                e.printStackTrace();
                ended(99);
            }
            ended(0);
            if (tool.endsWith("VerifiableProducer")) {
                // It flushes in a hook of the JVM's end.
                try {
                    sleep(500);
                } catch (InterruptedException e) {
                    return;
                }
            }
            System.out.flush();
            System.err.flush();
        }

        synchronized void ended(int with) {
            if (code == null) {
                code = with;
            }
        }

        ObjectNode result(double seconds) throws Exception {
            join((long) (seconds * 1000));
            ObjectNode answer = JSON.createObjectNode();
            answer.put("code", isAlive() ? -1 : code);
            answer.put("out", out.toString(StandardCharsets.UTF_8));
            answer.put("err", err.toString(StandardCharsets.UTF_8) + (isAlive() ? where() : ""));
            interrupt();
            return answer;
        }

        String where() {
            StringBuilder text = new StringBuilder("did not end in time:\n");
            for (StackTraceElement element : getStackTrace()) {
                text.append("    at ").append(element).append('\n');
            }
            return text.toString();
        }
    }

    /** The stream of the tool to which the writing thread belongs. */
    static class ToolStream extends OutputStream {
        final boolean isOut;
        final PrintStream otherwise;

        ToolStream(boolean isOut, PrintStream otherwise) {
            this.isOut = isOut;
            this.otherwise = otherwise;
        }

        @Override
        public void write(int b) {
            Run run = CURRENT.get();
            if (run == null) {
                otherwise.write(b);
            } else {
                (isOut ? run.out : run.err).write(b);
            }
        }

        @Override
        public void write(byte[] bytes, int offset, int length) {
            Run run = CURRENT.get();
            if (run == null) {
                otherwise.write(bytes, offset, length);
            } else {
                (isOut ? run.out : run.err).write(bytes, offset, length);
            }
        }
    }

    static class ToolInput extends InputStream {
        @Override
        public int read() throws java.io.IOException {
            Run run = CURRENT.get();
            return run == null ? -1 : run.in.read();
        }
    }

    @SuppressWarnings("removal")
    static void keepRunning() {
        Policy.setPolicy(new Policy() {
            @Override
            public boolean implies(ProtectionDomain domain, Permission permission) {
                return true;
            }
        });
        System.setSecurityManager(new SecurityManager() {
            @Override
            public void checkPermission(Permission permission) {
            }

            @Override
            public void checkPermission(Permission permission, Object context) {
            }

            @Override
            public void checkExit(int code) {
                Run run = CURRENT.get();
                if (run != null) {
                    run.ended(code);
                    throw new Ended(code);
                }
            }
        });
        Exit.setShutdownHookAdder((name, hook) -> { });
    }

    public static void main(String[] none) throws Exception {
        PrintStream answers = System.out;
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        System.setOut(new PrintStream(new ToolStream(true, System.err), true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(new ToolStream(false, System.err), true, StandardCharsets.UTF_8));
        System.setIn(new ToolInput());
        keepRunning();
        Map<String, Run> background = new HashMap<>();
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            JsonNode request = JSON.readTree(line);
            double seconds = request.path("seconds").asDouble(30);
            ObjectNode answer = JSON.createObjectNode();
            if (request.has("wait")) {
                answer = background.remove(request.get("wait").asText()).result(seconds);
            } else {
                Run run = new Run(request);
                run.start();
                if (request.has("background")) {
                    background.put(request.get("background").asText(), run);
                } else {
                    answer = run.result(seconds);
                }
            }
            answers.println(JSON.writeValueAsString(answer));
            answers.flush();
        }
        Runtime.getRuntime().halt(0);
    }
}
