import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs one of Kafka's tools as often as it is told to, in one JVM, since each start of a JVM takes two seconds.
 *
 * <p>The argument is the tool's class. Each line of standard input has the arguments of one run, separated by the
 * character U+001F. Each answer is a line with the exit code and, in base64, what the tool wrote to standard output and
 * to standard error.
 */
public final class ToolRunner {
    private static final class Ended extends RuntimeException {
        final int code;

        Ended(int code) {
            super("the tool ended with " + code);
            this.code = code;
        }
    }

    public static void main(String[] arguments) throws Exception {
        Exit.setExitProcedure((code, message) -> { throw new Ended(code); });
        Method tool = Class.forName(arguments[0]).getMethod("main", String[].class);
        PrintStream answers = System.out;
        PrintStream errors = System.err;
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            ByteArrayOutputStream err = new ByteArrayOutputStream();
            System.setOut(new PrintStream(out, true, "UTF-8"));
            System.setErr(new PrintStream(err, true, "UTF-8"));
            int code = 0;
            try {
                tool.invoke(null, (Object) line.split("\u001f"));
            } catch (InvocationTargetException failed) {
                if (!(failed.getCause() instanceof Ended)) {
                    throw failed;
                }
                code = ((Ended) failed.getCause()).code;
            } finally {
                System.setOut(answers);
                System.setErr(errors);
            }
            Base64.Encoder base64 = Base64.getEncoder();
            answers.println(code + " " + base64.encodeToString(out.toByteArray())
                + " " + base64.encodeToString(err.toByteArray()));
            answers.flush();
        }
    }
}
